"""Reads and writes safetensors files with numpy alone, so that `make test` needs no PyTorch.

Layout: u64 little-endian header length, JSON header, payload. Source: README of
huggingface/safetensors.
"""

import json
import struct

import numpy as np

# Names of the format, and how numpy holds them; bf16 has no numpy type, so its bits travel as u16.
DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits of finite f32 values rounded to bf16, ties to even."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype("<u4") << 16).view("<f4")


def encode(tensors: dict, dtype: str) -> bytes:
    """The file that holds f32 arrays, stored as `dtype`, in ascending order of their names."""
    header, chunks, offset_bytes = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        values = to_bf16(tensors[name]) if dtype == "BF16" else tensors[name].astype(DTYPES[dtype])
        chunks.append(values.tobytes())
        end_bytes = offset_bytes + len(chunks[-1])
        header[name] = {"dtype": dtype, "shape": list(values.shape),
                        "data_offsets": [offset_bytes, end_bytes]}
        offset_bytes = end_bytes
    return join(header, b"".join(chunks))


def join(header: dict, payload: bytes) -> bytes:
    """A file from its two parts; spaces behind the header align the payload."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + payload


def split(blob: bytes) -> tuple:
    """(header, payload) of a well-formed file."""
    header_bytes = struct.unpack_from("<Q", blob)[0]
    return json.loads(blob[8 : 8 + header_bytes]), blob[8 + header_bytes :]
