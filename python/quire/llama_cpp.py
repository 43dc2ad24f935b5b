"""llama-cpp-python's cache on a quire.store.BlockStore: what a context computed of a prompt, cut
into rows per token and stored by block, so that prompts share what they begin with, also in other
processes and after a restart. docs/adapters/llama_cpp.md.

    llm = llama_cpp.Llama("model.gguf", flash_attn=True)
    llm.set_cache(quire.llama_cpp.QuireCache(llm, "DIR", cap_bytes=8 << 30))
"""

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
from llama_cpp.llama import LlamaState
from llama_cpp.llama_cache import BaseLlamaCache

from quire._errors import Error, InvalidArgumentError, UnsupportedError
from quire._files import file_digest
from quire.store import BlockStore, Outcome

__all__ = ["QuireCache"]

_log = logging.getLogger(__name__)

_MAGIC = b"QLC1"  # of a stored block
# What changes the bytes of a state besides weights and tokens, as llama.cpp names it.
_PARAMETERS = ("n_ctx", "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
               "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "type_k",
               "type_v", "flash_attn_type", "offload_kqv", "swa_full")


class _Rows(NamedTuple):
    """One tensor of a layer: a row for each token."""

    type: int
    row_bytes: int
    element_bytes: int  # not 0: the state has it transposed, values of a token far apart


class _Part(NamedTuple):
    """One cache of keys and values in a state; models with windows have two."""

    keys: list[_Rows]
    values: list[_Rows]

    def tensors(self) -> Iterator[_Rows]:
        yield from self.keys
        yield from self.values


class _Layout(NamedTuple):
    """How a state lies in its bytes, whatever its length; it belongs to a version of llama.cpp."""

    head: bytes
    parts: list[_Part]

    def encode(self) -> bytes:
        return json.dumps([self.head.hex(), self.parts], separators=(",", ":")).encode()

    @staticmethod
    def decode(text: bytes) -> "_Layout":
        """Raises ValueError: no layout."""
        try:
            head, parts = json.loads(text)
            layout = _Layout(bytes.fromhex(head), [_Part([_Rows(*rows) for rows in keys],
                                                         [_Rows(*rows) for rows in values])
                                                   for keys, values in parts])
            tensors = [rows for part in layout.parts for rows in part.tensors()]
            if tensors and all(rows.row_bytes > 0 and rows.element_bytes >= 0 and
                               (not rows.element_bytes or rows.row_bytes % rows.element_bytes == 0)
                               for rows in tensors):
                return layout
        except TypeError:
            pass
        raise ValueError("a block without the layout of a state")

    def token_bytes(self) -> int:
        return sum(rows.row_bytes for part in self.parts for rows in part.tensors())


class _State(NamedTuple):
    layout: _Layout
    rows: list[Any]  # of each tensor, [tokens, row_bytes]


class _Reader:
    def __init__(self, data: Any, at: int) -> None:
        self.data, self.at = data, at

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def rows(self, tokens: int, rows: _Rows) -> Any:
        size = tokens * rows.row_bytes
        flat = np.frombuffer(self.data, np.uint8, size, self.at)
        self.at += size
        if not rows.element_bytes:
            return flat.reshape(tokens, rows.row_bytes)
        return flat.reshape(-1, tokens, rows.element_bytes).transpose(1, 0, 2)


def _read_part(reader: _Reader, tokens: int) -> tuple[_Part, list[Any]]:
    streams, cells = reader.take("<II")
    if streams != 1 or cells != tokens:
        raise ValueError("not one cell for each token")
    for position in range(tokens):
        if reader.take("<iIi") != (position, 1, 0):
            raise ValueError("cells that are not those of the tokens in their order")
    transposed, layers = reader.take("<II")
    if transposed > 1 or layers > 65_536:
        raise ValueError("no layers")
    part, arrays = _Part([], []), []
    for _ in range(layers):
        kind, row_bytes = reader.take("<iQ")
        part.keys.append(_Rows(kind, row_bytes, 0))
        arrays.append(reader.rows(tokens, part.keys[-1]))
    for _ in range(layers):
        if transposed:
            kind, element_bytes, elements = reader.take("<iII")
            rows = _Rows(kind, element_bytes * elements, element_bytes)
        else:
            kind, row_bytes = reader.take("<iQ")
            rows = _Rows(kind, row_bytes, 0)
        part.values.append(rows)
        arrays.append(reader.rows(tokens, rows))
    return part, arrays


def _parse(data: Any, tokens: int) -> _State:
    """Reads a state of one sequence to its last byte. ValueError: it is not as known."""
    for head_bytes in (8, 4, 0):
        reader, parts, arrays = _Reader(data, head_bytes), [], []
        try:
            while reader.at < len(data):
                part, of_part = _read_part(reader, tokens)
                parts.append(part)
                arrays += of_part
        except (struct.error, ValueError):
            continue
        if parts:
            return _State(_Layout(bytes(data[:head_bytes]), parts), arrays)
    raise ValueError("a state that is not laid out as known")


def _build(layout: _Layout, rows: list[Any], tokens: int) -> bytes:
    """The state of so many tokens; `rows` as in _State."""
    out = [layout.head]
    cells = np.zeros((tokens, 3), "<i4")
    cells[:, 0], cells[:, 1] = np.arange(tokens), 1
    left = iter(rows)
    for part in layout.parts:
        transposed = any(rows.element_bytes for rows in part.values)
        out += [struct.pack("<II", 1, tokens), cells.tobytes(),
                struct.pack("<II", transposed, len(part.keys))]
        for tensor in part.tensors():
            data = next(left)
            if tensor.element_bytes:
                elements = tensor.row_bytes // tensor.element_bytes
                out.append(struct.pack("<iII", tensor.type, tensor.element_bytes, elements))
                data = data.reshape(tokens, elements, tensor.element_bytes).transpose(1, 0, 2)
            else:
                out.append(struct.pack("<iQ", tensor.type, tensor.row_bytes))
            out.append(np.ascontiguousarray(data).tobytes())
    return b"".join(out)


class QuireCache(BaseLlamaCache):  # type: ignore[misc]
    """What Llama.set_cache takes. A lookup restores the longest stored prefix of the prompt right
    into the context of the model that it was made with, if that has less of it; so each Llama has
    a cache object of its own, and several may share one store.

    Not thread-safe, as Llama is not. A store that fails costs hits, never an answer.
    """

    def __init__(self, llm: Any, store: str | os.PathLike[str] | BlockStore, *,
                 cap_bytes: int = 8 << 30, block_tokens: int = 32) -> None:
        """store: a directory, "unix:PATH" of one that is served, or a BlockStore. block_tokens:
        that are stored together; what a prompt has beyond whole blocks is stored as well, for
        prompts that are the same or go on from there.

        Reads the whole model file once, as its digest is part of the name of what is stored.
        Raises: UnsupportedError recurrent and hybrid models, encoders, models with images;
        InvalidArgumentError; what BlockStore raises.
        """
        super().__init__(cap_bytes)
        if not 1 <= block_tokens <= 4096:
            raise InvalidArgumentError(f"block_tokens is {block_tokens}")
        _check_supported(llm)
        self._llm = llm
        self._block_tokens = block_tokens
        self._namespace = "llama_cpp " + _identity(llm)
        self._owns_store = not isinstance(store, BlockStore)
        self._store = store if isinstance(store, BlockStore) else BlockStore(
            store, cap_bytes=cap_bytes, accepts_puts=True)
        self._prompt_tokens = 0  # of the last lookup
        self._warned: set[str] = set()

    @property
    def cache_size(self) -> int:
        """Bytes on disk of what this model has stored."""
        return self._store.usage(self._namespace)["bytes_live"]

    def __contains__(self, key: Sequence[int]) -> bool:
        return bool(self._find(_ids(key)))

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Restores the longest stored prefix into the model's context. KeyError: nothing is stored
        that the context does not have."""
        tokens = _ids(key)
        self._prompt_tokens = len(tokens)
        here = int(self._llm.n_tokens)
        same = np.flatnonzero(self._llm.input_ids[:here][:len(tokens)] != tokens[:here])
        evaluated = int(same[0]) if len(same) else min(here, len(tokens))
        restored = self._restore(tokens, evaluated)
        if restored <= evaluated:
            raise KeyError("nothing of this prompt is stored that the context does not have")
        # Llama sees that its context has as much as this, and loads nothing.
        return LlamaState(input_ids=tokens[:restored].copy(), n_tokens=restored,
                          scores=np.zeros((0, self._llm.n_vocab()), np.single), llama_state=b"",
                          llama_state_size=0, seed=self._llm._seed)

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        """Stores what the context has computed, as far as it is not stored yet."""
        count = int(self._llm.n_tokens)
        tokens = _ids(self._llm.input_ids[:count])
        if count == 0 or not np.array_equal(_ids(key)[:count], tokens):
            return
        with self._failing_softly("store"):
            wanted = self._blocks(tokens)
            for length in {self._prompt_tokens, count}:
                if 0 < length <= count:
                    wanted.update(self._tails(tokens[:length], (length % self._block_tokens,)))
            keys = list(wanted)
            found = self._store.wait(self._store.submit_exists(keys, namespace=self._namespace))
            missing = [key for key, result in zip(keys, found) if result.outcome != Outcome.OK]
            if not missing:
                return
            state = _parse(self._save(), count)
            layout = state.layout.encode()
            front = _MAGIC + struct.pack("<I", len(layout)) + layout
            self._store.put_many(
                missing, [front + b"".join(np.ascontiguousarray(rows[begin:end]).tobytes()
                                           for rows in state.rows)
                          for begin, end in (wanted[key] for key in missing)],
                namespace=self._namespace)

    def close(self) -> None:
        """Makes everything durable, and closes the store if it was opened here."""
        if self._owns_store:
            self._store.close()
        else:
            self._store.flush()

    # -- Inside ------------------------------------------------------------------------------------

    def _blocks(self, tokens: Any) -> dict[bytes, tuple[int, int]]:
        """Whole blocks, in their order: where each begins and ends, by its key."""
        blocks, before = {}, bytes(32)
        for begin in range(0, len(tokens) - self._block_tokens + 1, self._block_tokens):
            end = begin + self._block_tokens
            before = _key(before, tokens[begin:end])
            blocks[before] = (begin, end)
        return blocks

    def _tails(self, tokens: Any, lengths: Iterable[int],
               begin: int | None = None) -> dict[bytes, tuple[int, int]]:
        """What tokens may end with beyond whole blocks, or behind `begin`."""
        whole = len(tokens) // self._block_tokens * self._block_tokens if begin is None else begin
        before = next(reversed(self._blocks(tokens[:whole])), bytes(32))
        return {_key(before, tokens[whole:whole + length]): (whole, whole + length)
                for length in lengths if length > 0 and whole + length <= len(tokens)}

    def _find(self, tokens: Any) -> dict[bytes, tuple[int, int]]:
        """The longest prefix that the store has."""
        found: dict[bytes, tuple[int, int]] = {}
        with self._failing_softly("look up"):
            blocks = self._blocks(tokens)
            for key, there in self._exist(blocks):
                if not there:
                    break
                found[key] = blocks[key]
            begin = len(found) * self._block_tokens
            tails = self._tails(tokens, range(1, self._block_tokens), begin)
            longest = [key for key, there in self._exist(tails) if there][-1:]
            found.update((key, tails[key]) for key in longest)
        return found

    def _exist(self, blocks: dict[bytes, tuple[int, int]]) -> Iterator[tuple[bytes, bool]]:
        results = self._store.wait(self._store.submit_exists(list(blocks),
                                                             namespace=self._namespace))
        return ((key, result.outcome == Outcome.OK) for key, result in zip(blocks, results))

    def _restore(self, tokens: Any, evaluated: int) -> int:
        """Tokens that the context has afterwards; at most `evaluated`: it is as it was."""
        found = self._find(tokens)
        if not found or max(end for _, end in found.values()) <= evaluated:
            return 0
        with self._failing_softly("load"):
            read = self._read(found)
            if read is None:
                return 0
            layout, rows, count = read
            if count <= evaluated:
                return 0
            if self._load(_build(layout, rows, count)):
                self._llm.input_ids[:count] = tokens[:count]
                self._llm.n_tokens = count
                self._llm._requires_eval = True
                return count
            self._llm._ctx.kv_cache_clear()
            self._llm.reset()
        return 0

    def _read(self, found: dict[bytes, tuple[int, int]]) -> tuple[_Layout, list[Any], int] | None:
        """What the store gives of these blocks, up to the first that is not as it should be."""
        keys = list(found)
        known = self._store.wait(self._store.submit_exists(keys, namespace=self._namespace))
        buffers = [bytearray(result.length if result.outcome == Outcome.OK else 0)
                   for result in known]
        results = self._store.wait(self._store.submit_get(keys, buffers, namespace=self._namespace))
        read: tuple[bytes, _Layout] | None = None
        pieces, count = [], 0
        for key, buffer, result in zip(keys, buffers, results):
            if result.outcome != Outcome.OK:
                break
            begin, end = found[key]
            data = memoryview(buffer)[:result.length]
            front = _front_of(data)
            if front is not None and read is None:
                read = (front, _Layout.decode(front[8:]))
            if read is None or front != read[0] or (
                    len(data) != len(read[0]) + read[1].token_bytes() * (end - begin)):
                self._store.remove(key, namespace=self._namespace)  # it is none of ours
                break
            pieces.append((data[len(read[0]):], end - begin))
            count = end
        return (read[1], _join(read[1], pieces), count) if read is not None and pieces else None

    def _save(self) -> Any:
        context = self._llm.ctx
        size = llama_cpp.llama_state_seq_get_size(context, 0)
        state = (ctypes.c_uint8 * size)()
        written = llama_cpp.llama_state_seq_get_data(context, state, size, 0)
        return memoryview(state).cast("B")[:written]

    def _load(self, state: bytes) -> bool:
        data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        read = llama_cpp.llama_state_seq_set_data(self._llm.ctx, data, len(state), 0)
        return bool(read == len(state))

    @contextlib.contextmanager
    def _failing_softly(self, what: str) -> Iterator[None]:
        """A failure costs what was to be done, and is told once."""
        try:
            yield
        except (Error, ValueError) as error:
            if what not in self._warned:
                self._warned.add(what)
                _log.warning("quire could not %s: %s", what, error)


def _front_of(data: Any) -> bytes | None:
    """Magic number and layout of a block; None: it has none that can be read."""
    if len(data) < 8 or data[:4] != _MAGIC:
        return None
    front = bytes(data[:8 + struct.unpack_from("<I", data, 4)[0]])
    try:
        _Layout.decode(front[8:])
    except ValueError:
        return None
    return front


def _join(layout: _Layout, pieces: list[tuple[Any, int]]) -> list[Any]:
    """The rows of each tensor, of all blocks together."""
    rows, at = [], 0
    for part in layout.parts:
        for tensor in part.tensors():
            rows.append(np.concatenate([
                np.frombuffer(data, np.uint8, count * tensor.row_bytes, at * count)
                .reshape(count, tensor.row_bytes) for data, count in pieces]))
            at += tensor.row_bytes
    return rows


def _ids(tokens: Sequence[int]) -> Any:
    return np.asarray(tokens, np.intc)


def _key(before: bytes, tokens: Any) -> bytes:
    return hashlib.blake2b(before + tokens.astype("<i4").tobytes(), digest_size=32).digest()


def _check_supported(llm: Any) -> None:
    model = llm.model
    if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
        raise UnsupportedError("a recurrent or hybrid model: its state is not a row for each token")
    if llama_cpp.llama_model_has_encoder(model):
        raise UnsupportedError("a model with an encoder: its state does not follow from tokens")
    if llm.chat_handler is not None:
        raise UnsupportedError("a model with a chat handler (images): tokens do not name them")


def _identity(llm: Any) -> str:
    """Names everything that decides the bytes of a state, besides its tokens."""
    parameters = {name: getattr(llm.context_params, name) for name in _PARAMETERS
                  if hasattr(llm.context_params, name)}
    adapter = [file_digest(llm.lora_path), llm.lora_scale] if llm.lora_path else None
    described = {"weights": [file_digest(path) for path in _model_files(llm.model_path)],
                 "adapter": adapter, "version": llama_cpp.__version__, "parameters": parameters,
                 "gpu_layers": llm.model_params.n_gpu_layers,
                 "machine": llama_cpp.llama_print_system_info().decode()}
    text = json.dumps(described, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _model_files(path: str) -> list[str]:
    parts = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path)
    if parts is None:
        return [path]
    return [f"{parts[1]}-{number:05}-of-{parts[2]}.gguf" for number in range(1, int(parts[2]) + 1)]
