"""NumPy reads the cache in place: libquire.so through ctypes, blocks through DLPack.

Run with the library's path. Exits with 0 when every value equals what gather copies.
"""

import ctypes
import sys

import numpy as np

LAYERS, HEADS, DIM, BLOCK, TOKENS = 2, 3, 8, 16, 37
F32, F16, KEY, VALUE = 1, 2, 1, 2
BLOCK_MAJOR, HEAD_MAJOR, FREE_LIST, FIRST_FIT, ALL_BLOCKS = 1, 3, 0, 1, 2**64 - 1
u32, u64, i32, i64, ptr = (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64,
                           ctypes.c_void_p)


class Sized(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(**fields)
        self.size = ctypes.sizeof(self)


class Error(ctypes.Structure):
    _fields_ = [("code", i32), ("message", ctypes.c_char * 508)]


class CacheOptions(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("layers", u32), ("kv_heads", u32), ("head_dim", u32),
                ("group_count", u32), ("groups", ptr), ("codec", i32), ("value_codec", i32),
                ("block_tokens", u32), ("compute", i32), ("arithmetic", ctypes.c_char_p),
                ("layout", i32), ("huge_pages", i32), ("placement", i32), ("hot_bytes", u64),
                ("tokens_max", u64)]


class Identity(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("weights", ctypes.c_uint8 * 32),
                ("adapter", ctypes.c_char_p), ("adapter_version", u64),
                ("position_encoding", ctypes.c_char_p), ("domain", ctypes.c_char_p),
                ("domain_secret", ctypes.c_uint8 * 32), ("domain_epoch", u64)]


class AcquireRequest(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("identity", ctypes.POINTER(Identity)), ("tokens", ptr),
                ("token_count", ctypes.c_size_t), ("no_reuse", i32)]


class SequenceOptions(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("reserve_tokens", u64), ("step_tokens", u64),
                ("on_full", i32), ("private_blocks", i32), ("contiguous", i32)]


class Rows(ctypes.Structure):
    _fields_ = [("data", ptr), ("dtype", i32), ("token_stride", i64), ("head_stride", i64)]


class Quire:
    """The functions of quire.h; a code other than 0 is an exception."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def call(self, name, *arguments):
        error = Error()
        if getattr(self.library, name)(*arguments, ctypes.byref(error)) != 0:
            raise RuntimeError(f"{name}: {error.message.decode()}")

    def make(self, name, *arguments):
        handle = ptr()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def free(self, name, handle):
        getattr(self.library, name)(handle)


class Block:
    """A block of a view for numpy.from_dlpack, with a read-only flag where NumPy understands it."""

    def __init__(self, quire, view, index):
        self.quire, self.view, self.index = quire, view, index

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, max_version=None, **_):
        versioned = max_version is not None and max_version[0] >= 1
        function, name = (("quire_view_dlpack", b"dltensor_versioned") if versioned else
                          ("quire_view_dlpack_legacy", b"dltensor"))
        tensor = self.quire.make(function, self.view, u64(self.index))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ptr, ctypes.c_char_p, ptr]
        return new(tensor, name, None)


def feed(quire, sequence, tokens):
    for layer in range(LAYERS):
        rows = np.random.default_rng(layer).standard_normal((2, TOKENS, HEADS, DIM), np.float32)
        key, value = (Rows(half.ctypes.data, F32, HEADS * DIM, DIM) for half in rows)
        quire.call("quire_sequence_append", sequence, u32(layer), ctypes.byref(key),
                   ctypes.byref(value), u32(TOKENS))
    quire.call("quire_sequence_commit", sequence, tokens.ctypes.data_as(ptr),
               ctypes.c_size_t(TOKENS))


def gather(quire, sequence, role):
    out = np.empty((HEADS, TOKENS, DIM), np.float32)
    quire.call("quire_sequence_gather", sequence, u32(1), i32(role), u64(0), u64(TOKENS),
               out.ctypes.data_as(ptr), ctypes.c_size_t(out.size))
    assert np.abs(out).max() > 1
    return out


def arrays(quire, sequence, role, indices):
    view = quire.make("quire_view_open", sequence, u32(1), i32(role))
    made = [np.from_dlpack(Block(quire, view, index)) for index in indices]
    quire.free("quire_view_free", view)
    for array in made:
        assert array.dtype == np.float16 and not array.flags.writeable and not array.flags.owndata
    return made


def check_blocks(quire, sequence, role):
    blocks = arrays(quire, sequence, role, range(3))
    for block in blocks:
        # Keys are token-contiguous, values channel-contiguous.
        assert block.strides[1:] == ((2, 2 * BLOCK) if role == KEY else (2 * DIM, 2))
    assert [block.shape for block in blocks] == [(HEADS, tokens, DIM) for tokens in (16, 16, 5)]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1).astype(np.float32),
                                  gather(quire, sequence, role))
    return blocks


def check_array(quire, sequence, role):
    """In a head-major arena a contiguous sequence is one array [heads, tokens, dim]."""
    (array,) = arrays(quire, sequence, role, [ALL_BLOCKS])
    assert array.shape == (HEADS, TOKENS, DIM) and array.strides[1:] == (2 * DIM, 2)
    np.testing.assert_array_equal(array.astype(np.float32), gather(quire, sequence, role))
    return [array]


def check_cache(quire, check, layout, placement, contiguous):
    options = CacheOptions(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, codec=F16, layout=layout,
                           placement=placement, hot_bytes=1 << 24)
    identity = Identity(position_encoding=b"none")
    tokens = np.arange(TOKENS, dtype=np.int32)
    request = AcquireRequest(identity=ctypes.pointer(identity), tokens=tokens.ctypes.data,
                             token_count=TOKENS, no_reuse=contiguous)
    cache = quire.make("quire_cache_create", ctypes.byref(options))
    plan = quire.make("quire_acquire", cache, ctypes.byref(request))
    sequence = quire.make("quire_open", plan,
                          ctypes.byref(SequenceOptions(contiguous=contiguous)))
    feed(quire, sequence, tokens)
    held = [check(quire, sequence, role) for role in (KEY, VALUE)]

    # The arrays alone keep the blocks, and let them go when they end.
    quire.free("quire_sequence_free", sequence)
    evicted = u64()
    quire.call("quire_cache_evict", cache, u64(9), ctypes.byref(evicted))
    assert evicted.value == 0
    held.clear()
    quire.call("quire_cache_evict", cache, u64(9), ctypes.byref(evicted))
    assert evicted.value == (0 if contiguous else 2)
    quire.free("quire_cache_free", cache)


def main():
    quire = Quire(sys.argv[1])
    check_cache(quire, check_blocks, BLOCK_MAJOR, FREE_LIST, contiguous=0)
    check_cache(quire, check_array, HEAD_MAJOR, FIRST_FIT, contiguous=1)
    print(f"ok, NumPy {np.__version__}")


if __name__ == "__main__":
    main()
