"""The state of one sequence in llama.cpp, as bytes: read to the last one into rows for each token,
and put together again of any prefix's rows."""

import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_MAGIC = b"QLC1"  # of a stored block
_STREAMS_MAX = 4096
_ZEROS = (0, 8)


class Rows(NamedTuple):
    """One tensor of a layer: a row for each token."""

    type: int
    row_bytes: int
    element_bytes: int  # not 0: the state has it transposed, values of a token far apart


class Part(NamedTuple):
    """One cache of keys and values in a state; models with windows have two."""

    keys: list[Rows]
    values: list[Rows]
    streams: int = 1  # of the context, one of which has the sequence
    zeros: int = 0  # bytes behind the number of layers, in newer versions

    def tensors(self) -> Iterator[Rows]:
        yield from self.keys
        yield from self.values


class Layout(NamedTuple):
    """How a state lies in its bytes, whatever its length; it belongs to a version of llama.cpp."""

    head: bytes
    parts: list[Part]

    def encode(self) -> bytes:
        parts = [part[:2] if part[2:] == (1, 0) else part for part in self.parts]
        return json.dumps([self.head.hex(), parts], separators=(",", ":")).encode()

    @staticmethod
    def decode(text: bytes) -> "Layout":
        """Raises ValueError: no layout."""
        try:
            head, parts = json.loads(text)
            layout = Layout(bytes.fromhex(head), [Part([Rows(*rows) for rows in keys],
                                                         [Rows(*rows) for rows in values],
                                                         *others)
                                                   for keys, values, *others in parts])
            tensors = [rows for part in layout.parts for rows in part.tensors()]
            are_parts = all(0 < part.streams <= _STREAMS_MAX and part.zeros in _ZEROS
                            for part in layout.parts)
            are_rows = all(rows.row_bytes > 0 and rows.element_bytes >= 0 and
                           (not rows.element_bytes or rows.row_bytes % rows.element_bytes == 0)
                           for rows in tensors)
            if tensors and are_parts and are_rows:
                return layout
        except TypeError:
            pass
        raise ValueError("a block without the layout of a state")

    def token_bytes(self) -> int:
        return sum(rows.row_bytes for part in self.parts for rows in part.tensors())


class State(NamedTuple):
    layout: Layout
    rows: list[Any]  # of each tensor, [tokens, row_bytes]


class _Reader:
    def __init__(self, data: Any, at: int) -> None:
        self.data, self.at = data, at

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def rows(self, tokens: int, rows: Rows) -> Any:
        size = tokens * rows.row_bytes
        flat = np.frombuffer(self.data, np.uint8, size, self.at)
        self.at += size
        if not rows.element_bytes:
            return flat.reshape(tokens, rows.row_bytes)
        return flat.reshape(-1, tokens, rows.element_bytes).transpose(1, 0, 2)


def _read_part(reader: _Reader, tokens: int, zeros: int) -> tuple[Part, list[Any]]:
    streams, = reader.take("<I")
    if not 0 < streams <= _STREAMS_MAX:
        raise ValueError("no streams")
    left = streams - 1
    while not (cells := reader.take("<I")[0]) and left:
        left -= 1
    if cells != tokens:
        raise ValueError("not one cell for each token")
    for position in range(tokens):
        if reader.take("<iIi")[:2] != (position, 1):  # the third is the sequence
            raise ValueError("cells that are not those of the tokens in their order")
    transposed, layers = reader.take("<II")
    if transposed > 1 or layers > 65_536 or any(reader.take(f"<{zeros}B")):
        raise ValueError("no layers")
    part, arrays = Part([], [], streams, zeros), []
    for _ in range(layers):
        kind, row_bytes = reader.take("<iQ")
        part.keys.append(Rows(kind, row_bytes, 0))
        arrays.append(reader.rows(tokens, part.keys[-1]))
    for _ in range(layers):
        if transposed:
            kind, element_bytes, elements = reader.take("<iII")
            rows = Rows(kind, element_bytes * elements, element_bytes)
        else:
            kind, row_bytes = reader.take("<iQ")
            rows = Rows(kind, row_bytes, 0)
        part.values.append(rows)
        arrays.append(reader.rows(tokens, rows))
    if any(reader.take(f"<{left}I")):
        raise ValueError("several streams with cells")
    return part, arrays


def parse(data: Any, tokens: int) -> State:
    """Reads a state of one sequence to its last byte. ValueError: it is not as known."""
    for head_bytes, zeros in itertools.product((8, 4, 0), _ZEROS):
        reader, parts, arrays = _Reader(data, head_bytes), [], []
        try:
            while reader.at < len(data):
                part, of_part = _read_part(reader, tokens, zeros)
                parts.append(part)
                arrays += of_part
        except (struct.error, ValueError):
            continue
        if parts:
            return State(Layout(bytes(data[:head_bytes]), parts), arrays)
    raise ValueError("a state that is not laid out as known")


def build(layout: Layout, rows: list[Any], tokens: int) -> bytes:
    """The state of so many tokens; `rows` as in State."""
    out = [layout.head]
    cells = np.zeros((tokens, 3), "<i4")
    cells[:, 0], cells[:, 1] = np.arange(tokens), 1
    left = iter(rows)
    for part in layout.parts:
        transposed = any(rows.element_bytes for rows in part.values)
        out += [struct.pack("<II", part.streams, tokens), cells.tobytes(),
                struct.pack("<II", transposed, len(part.keys)), bytes(part.zeros)]
        for tensor in part.tensors():
            data = next(left)
            if tensor.element_bytes:
                elements = tensor.row_bytes // tensor.element_bytes
                out.append(struct.pack("<iII", tensor.type, tensor.element_bytes, elements))
                data = data.reshape(tokens, elements, tensor.element_bytes).transpose(1, 0, 2)
            else:
                out.append(struct.pack("<iQ", tensor.type, tensor.row_bytes))
            out.append(np.ascontiguousarray(data).tobytes())
        out.append(bytes(4 * (part.streams - 1)))  # the others have no cells
    return b"".join(out)


def front_of(data: Any) -> bytes | None:
    """Magic number and layout of a block; None: it has none that can be read."""
    if len(data) < 8 or data[:4] != _MAGIC:
        return None
    head = bytes(data[:8 + struct.unpack_from("<I", data, 4)[0]])
    try:
        Layout.decode(head[8:])
    except ValueError:
        return None
    return head


def join(layout: Layout, pieces: list[tuple[Any, int]]) -> list[Any]:
    """The rows of each tensor, of all blocks together."""
    rows, at = [], 0
    for part in layout.parts:
        for tensor in part.tensors():
            rows.append(np.concatenate([
                np.frombuffer(data, np.uint8, count * tensor.row_bytes, at * count)
                .reshape(count, tensor.row_bytes) for data, count in pieces]))
            at += tensor.row_bytes
    return rows


def front(layout: Layout) -> bytes:
    """What each stored block begins with."""
    text = layout.encode()
    return _MAGIC + struct.pack("<I", len(text)) + text
