"""Bytes of Python objects that C reads and writes where they lie."""

from __future__ import annotations

import ctypes
import numbers
import sys
from typing import Any

import numpy as np


class _Buffer(ctypes.Structure):  # Py_buffer
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_Buffer)]
_release_buffer.restype = None
_WRITABLE = 1  # PyBUF_WRITABLE; without it the bytes need only be contiguous


class Pinned:
    """Bytes of an object that stay where they are until `release`.

    To be read: anything with a buffer, and torch tensors; what does not lie in C order is copied.
    To be written (`writable`): what lies in C order. Raises: TypeError, BufferError.
    """

    def __init__(self, source: Any, writable: bool) -> None:
        self._kept: Any = None
        self._buffer: _Buffer | None = None
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(source, torch.Tensor):
            self._kept = _host_tensor(source, writable)
            self.address: int | None = self._kept.data_ptr()
            self.length: int = self._kept.numel() * self._kept.element_size()
            return
        if isinstance(source, (numbers.Number, np.generic)):
            raise TypeError(f"a block is bytes or an array, not the number {source!r}")
        if isinstance(source, np.ndarray):
            if source.dtype.hasobject:
                raise TypeError("an array of Python objects has no bytes of its own")
            if not source.flags.c_contiguous:
                if writable:
                    raise BufferError("the array does not lie in C order")
                source = np.ascontiguousarray(source)
        elif isinstance(source, memoryview) and not source.c_contiguous and not writable:
            source = source.tobytes()
        self._buffer = _Buffer()
        _get_buffer(source, ctypes.byref(self._buffer), _WRITABLE if writable else 0)
        self.address = self._buffer.buf
        self.length = self._buffer.len

    def release(self) -> None:
        """Lets the object move or go."""
        self._kept = None
        if self._buffer is not None:
            _release_buffer(ctypes.byref(self._buffer))
            self._buffer = None


def _host_tensor(tensor: Any, writable: bool) -> Any:
    """The tensor, or a copy to be read, whose values lie one after the other."""
    if tensor.device.type != "cpu" or tensor.is_sparse:
        raise BufferError(f"a tensor on {tensor.device} ({tensor.layout}): take its dense .cpu()")
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if writable and plain.data_ptr() != tensor.data_ptr():
        raise BufferError("the tensor does not lie in C order")
    return plain
