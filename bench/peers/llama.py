"""llama.cpp as a subject: one decoded token at any depth, and a prompt, through its C interface.

The cache of a deep context is filled without computing it: 512 tokens are computed once, their
state is taken (llama_state_seq_get_data), its rows are repeated as often as the depth needs, and
the result is restored (llama_state_seq_set_data). Attention then reads as many bytes of the same
kind as after a real prompt, and how long that takes does not depend on what they are. That the
layout is understood is checked first: the 512 tokens restored must give the very same logits for
the next token.
"""

import ctypes
import struct
import time

import llama_cpp
import numpy

VERSION = f"llama-cpp-python {llama_cpp.__version__}"
TEMPLATE_TOKENS = 512
_KV_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}  # enum ggml_type
_CELL = struct.Struct("<iIi")  # position, number of sequences, sequence

_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)


def load_model(path):
    llama_cpp.llama_log_set(_quiet, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"llama.cpp does not load {path}")
    return model


class Context:
    """One sequence of a model. `tokens_max` it may hold; `batch` of them at once."""

    def __init__(self, model, kv, flash, threads, tokens_max, batch):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = tokens_max
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1 if flash else 0
        params.type_k = params.type_v = _KV_TYPES[kv]
        self._model = model
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context: kv {kv}, flash {flash}, {tokens_max}")
        self._memory = llama_cpp.llama_get_memory(self._context)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        llama_cpp.llama_free(self._context)

    @property
    def depth(self):
        return llama_cpp.llama_memory_seq_pos_max(self._memory, 0) + 1

    def clear(self):
        llama_cpp.llama_memory_clear(self._memory, False)

    def cut(self, depth):
        llama_cpp.llama_memory_seq_rm(self._memory, 0, depth, -1)

    def decode(self, tokens):
        """Computes tokens at the end of the sequence and returns the seconds it took."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        begin = time.perf_counter()
        status = llama_cpp.llama_decode(
            self._context, llama_cpp.llama_batch_get_one(array, len(tokens))
        )
        seconds = time.perf_counter() - begin
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status} at depth {self.depth}")
        return seconds

    def logits(self):
        """Of the last token."""
        vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        return numpy.ctypeslib.as_array(
            llama_cpp.llama_get_logits_ith(self._context, -1), (vocab,)
        ).copy()

    def state(self):
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        state = numpy.empty(size, numpy.uint8)
        if llama_cpp.llama_state_seq_get_data(self._context, _pointer(state), size, 0) != size:
            raise RuntimeError("llama.cpp gives no state")
        return state

    def restore(self, state):
        self.clear()
        size = state.size
        if llama_cpp.llama_state_seq_set_data(self._context, _pointer(state), size, 0) != size:
            raise RuntimeError("llama.cpp does not take the state")


def template(context):
    """The state of TEMPLATE_TOKENS computed tokens; checks that it can be taken apart."""
    context.clear()
    context.decode([i * 7919 % 1000 for i in range(TEMPLATE_TOKENS)])
    state = context.state()
    context.decode([1])
    expected = context.logits()
    again = repeated(state, TEMPLATE_TOKENS)
    if not numpy.array_equal(state, again):
        raise RuntimeError("this llama.cpp lays its state out in another way")
    context.restore(again)
    context.decode([1])
    if not numpy.array_equal(expected, context.logits()):
        raise RuntimeError("a restored cache gives other logits")
    return state


def repeated(state, depth):
    """The state of `depth` tokens, whose rows are the template's again and again.

    Layout: 8 bytes of header, streams u32 (1), cells u32, the cells, whether V is transposed u32,
    layers u32; then of each layer K: type i32, bytes of a row u64, rows [cells]; then of each layer
    V the same, or transposed: type i32, bytes of a value u32, values of a row u32, [values, cells].
    """
    source = _Reader(state)
    header = source.take(8)
    streams, cells = source.unpack("<II")
    if (streams, cells) != (1, TEMPLATE_TOKENS):
        raise RuntimeError(f"a state of {streams} streams and {cells} cells")
    source.take(cells * _CELL.size)
    transposed, layers = source.unpack("<II")
    parts = [header, struct.pack("<II", streams, depth)]
    parts += [_CELL.pack(position, 1, 0) for position in range(depth)]
    parts += [struct.pack("<II", transposed, layers)]
    out = _Writer(state.size // cells * (depth + cells))
    for part in parts:
        out.put(numpy.frombuffer(bytes(part), numpy.uint8))
    for _ in range(layers):
        _repeat_rows(source, out, depth)
    for _ in range(layers):
        if transposed:
            _repeat_columns(source, out, depth)
        else:
            _repeat_rows(source, out, depth)
    if source.left:
        raise RuntimeError(f"{source.left} bytes at the end of a state")
    return out.written()


def _repeat_rows(source, out, depth):
    head = source.take(12)
    row_bytes = struct.unpack("<iQ", head)[1]
    rows = source.take(TEMPLATE_TOKENS * row_bytes)
    out.put(head)
    for begin in range(0, depth, TEMPLATE_TOKENS):
        out.put(rows[: (depth - begin) * row_bytes])


def _repeat_columns(source, out, depth):
    head = source.take(12)
    _, value_bytes, values = struct.unpack("<iII", head)
    columns = source.take(TEMPLATE_TOKENS * value_bytes * values).reshape(values, -1)
    out.put(head)
    repeats = -(-depth // TEMPLATE_TOKENS)
    out.put(numpy.tile(columns, repeats)[:, : depth * value_bytes].reshape(-1))


def _pointer(array):
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class _Reader:
    def __init__(self, data):
        self._data = data
        self._at = 0

    @property
    def left(self):
        return self._data.size - self._at

    def take(self, count):
        if count > self.left:
            raise RuntimeError("a state ends early")
        self._at += count
        return self._data[self._at - count : self._at]

    def unpack(self, layout):
        return struct.unpack(layout, self.take(struct.calcsize(layout)))


class _Writer:
    def __init__(self, capacity):
        self._data = numpy.empty(capacity, numpy.uint8)
        self._at = 0

    def put(self, data):
        self._data[self._at : self._at + data.size] = data
        self._at += data.size

    def written(self):
        return self._data[: self._at]
