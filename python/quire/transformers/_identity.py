"""What decides a model's K and V besides the tokens, and when it changed.

A look walks the model once: tensors (parameters, buffers, packed weights of quantized modules and
whatever else modules hold), plain attributes of modules, hooks, adapters, autocast. Of a tensor
only its address, its version and, in a thorough look, a sample of its values are compared with the
last look; what differs is hashed anew. docs/adapters/transformers.md says what that cannot see.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import operator
import os
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as torch_module
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

import quire
from quire._tensors import Mark, bytes_of, mark, sample

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
# What attach() sets at a model.
OWN_FIELDS = ("generate_batch", "init_continuous_batching", "prepare_inputs_for_generation")
OWN_HOOKS: set[Any] = set()
# Of config fields that name the model or this process, and decide no value.
_NO_VALUES = frozenset(("name_or_path", "transformers_version", "architectures"))
# Of a module: what is walked as what it is, and what decides no value.
_IGNORED = frozenset((*vars(torch.nn.Module()), *OWN_FIELDS, "_is_hf_initialized"))
# Of a rope that makes its frequencies in each forward, out of others that are compared.
_MADE_ANEW = ("inv_freq", "max_seq_len_cached")
_DEPTH_MAX = 4  # of objects inside objects that are no modules
_NO_ADAPTER = "__base__"  # peft's name for a row without one


def _modes() -> tuple[Any, ...]:
    return (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
            torch.get_float32_matmul_precision())


@dataclasses.dataclass
class Part:
    """Facts and tensors that are hashed together."""

    facts: list[tuple[str, Any]] = dataclasses.field(default_factory=list)
    tensors: list[tuple[str, torch.Tensor]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Look:
    """One look at a model."""

    base: Part
    adapters: dict[str, Part]  # by their names; the weights of each
    active: tuple[str, ...]  # the adapters that compute all rows
    row_adapters: list[str] | None  # peft's adapter_names, where they are set
    modes: tuple[Any, ...]  # of torch
    quantized: bool  # packed weights or tensors of torch's quantized types
    walked: list[Any]  # the containers: dictionaries by their values

    def __post_init__(self) -> None:
        self._lengths = list(map(len, self.walked))
        self._items = list(itertools.chain.from_iterable(self.walked))
        self._marks = self._marks_now()

    def _marks_now(self) -> list[Any]:
        parts = (self.base, *self.adapters.values())
        return [mark(tensor) for part in parts for _, tensor in part.tensors]

    @property
    def autocast(self) -> bool:
        """Whether torch casts what the model computes with."""
        return bool(self.modes[0])

    def of_row(self, row: int) -> tuple[str, ...]:
        """The adapters that compute a row."""
        if self.row_adapters is None:
            return self.active
        name = self.row_adapters[row]
        return () if name == _NO_ADAPTER else (name,)

    def holds(self) -> bool:
        """Whether a new look would see the same, as far as torch tells."""
        return (list(map(len, self.walked)) == self._lengths
                and all(map(operator.is_, itertools.chain.from_iterable(self.walked), self._items))
                and self.modes == _modes() and self._marks_now() == self._marks)


class _Walk:
    """Makes a Look."""

    def __init__(self, model: torch.nn.Module):
        self._seen: dict[int, str] = {}
        self._part = self._base = Part()
        self._adapters: dict[str, Part] = {}
        self._row_adapters: list[str] | None = None
        self._active: list[tuple[str, ...]] = []  # of each layer that has adapters
        self._walked: list[Any] = []
        self._modes = _modes()
        self._quantized = False
        self._fact("modes", self._modes)
        self._hooks("all modules", torch_module._global_forward_pre_hooks)
        self._hooks("all modules", torch_module._global_forward_hooks)
        self._module("", model)

    def look(self) -> Look:
        active = set(self._active)
        if len(active) > 1:  # layers that differ: all of it is one fact
            self._fact("active adapters", tuple(self._active))
        names = tuple(dict.fromkeys(name for layer in self._active for name in layer))
        return Look(self._base, self._adapters, names, self._row_adapters, self._modes,
                    self._quantized, self._walked)

    def _items(self, container: Mapping[Any, Any]) -> Any:
        """Of a container that is walked."""
        self._walked.append(container.values())
        return container.items()

    def _fact(self, name: str, value: Any) -> None:
        self._part.facts.append((name, value))

    def _module(self, name: str, module: torch.nn.Module) -> None:
        if self._again(name, module):
            return
        kind = type(module)
        self._fact(name, (kind.__qualname__, module.training, _function_name(kind.forward)))
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.training and module.p:
            raise quire.UnsupportedError(f"dropout of {module.p} in {name}: call model.eval()")
        self._hooks(name, module._forward_pre_hooks)
        self._hooks(name, module._forward_hooks)
        has_adapters = hasattr(kind, "active_adapters") and hasattr(kind, "adapter_layer_names")
        names = self._adapter_layer(name, module) if has_adapters else frozenset()
        rope = str(getattr(module, "rope_type", ""))
        changes = "dynamic" in rope or "longrope" in rope
        plain = not isinstance(module, PreTrainedModel)  # theirs say nothing that a config does not
        for key, value in self._items(module.__dict__):
            if key in _IGNORED or changes and key.endswith(_MADE_ANEW) and "original" not in key:
                continue
            if names and isinstance(value, Mapping) and names.issuperset(value):
                self._by_adapter(f"{name}.{key}", value)
            elif plain or not isinstance(value, (*_PLAIN, list, dict, set)):
                self._value(f"{name}.{key}", value, 0)
        for key, tensor in (*self._items(module._parameters), *self._items(module._buffers)):
            if tensor is not None and not (changes and key.endswith(_MADE_ANEW)):
                self._tensor(f"{name}.{key}", tensor, 0)
        for key, child in self._items(module._modules):
            if child is None:
                continue
            if names and isinstance(child, _KEYED) and names.issuperset(child.keys()):
                self._by_adapter(f"{name}.{key}", child)
            else:
                self._module(f"{name}.{key}", child)

    def _adapter_layer(self, name: str, module: Any) -> frozenset[str]:
        """Notes which adapters compute a layer of peft; returns the names of all that it has."""
        merged = tuple(module.merged_adapters)
        if module.disable_adapters and merged:
            raise quire.UnsupportedError(
                f"adapters that are disabled and merged: their next use will unmerge {merged} "
                f"from {name}; call unmerge_adapter() before"
            )
        used = () if module.disable_adapters or merged else tuple(module.active_adapters)
        self._active.append(used)
        self._fact(f"{name} merged", merged)
        available = (module._all_available_adapter_names()
                     if hasattr(module, "_all_available_adapter_names") else module._adapters)
        return frozenset(available)

    def _by_adapter(self, name: str, values: Any) -> None:
        for adapter, value in values.items():
            self._part = self._adapters.setdefault(adapter, Part())
            if isinstance(value, torch.nn.Module):
                self._module(name, value)
            else:
                self._value(name, value, 0)
        self._part = self._base

    def _hooks(self, name: str, hooks: Any) -> None:
        for _, hook in self._items(hooks):
            if hook in OWN_HOOKS:
                continue
            told = hook.keywords if isinstance(hook, functools.partial) else {}
            if "adapter_names" in told and "peft" in hook.func.__module__:
                self._row_adapters = list(told["adapter_names"])
            else:
                self._fact(f"{name} hook", _token(hook))

    def _value(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self._fact(name, value)
        elif isinstance(value, torch.Tensor):
            self._tensor(name, value, depth)
        elif isinstance(value, torch.nn.Module):
            self._module(name, value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            self._tensor(name, torch.from_numpy(value), depth)
        elif isinstance(value, torch.ScriptObject):  # packed weights; they cannot change
            self._quantized = True
            self._value(name, _unpacked(value), depth)
        elif isinstance(value, type):
            self._fact(name, value.__qualname__)
        elif isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            self._fact(name, _function_name(value))
        elif isinstance(value, types.MethodType | functools.partial):
            self._fact(name, _token(value))
        elif depth == _DEPTH_MAX or self._again(name, value):
            self._fact(name, type(value).__qualname__)
        elif isinstance(value, Mapping):
            for key, item in self._items(value):
                self._value(f"{name}.{key}", item, depth + 1)
        elif isinstance(value, set | frozenset):
            self._walked.append(value)
            self._fact(name, sorted(map(repr, value)))
        elif isinstance(value, list | tuple):
            self._walked.append(value)
            for i, item in enumerate(value):
                self._value(f"{name}.{i}", item, depth + 1)
        elif not isinstance(value, GenerationConfig):
            self._object(name, value, depth)

    def _object(self, name: str, value: Any, depth: int) -> None:
        self._fact(name, type(value).__qualname__)
        is_config = isinstance(value, PreTrainedConfig)
        for key, item in self._items(getattr(value, "__dict__", {})):
            if not is_config or key[0] != "_" and key not in _NO_VALUES:
                self._value(f"{name}.{key}", item, depth + 1)

    def _tensor(self, name: str, tensor: torch.Tensor, depth: int) -> None:
        if self._again(name, tensor):
            return
        self._quantized |= tensor.is_quantized or hasattr(tensor, "__tensor_flatten__")
        if tensor.device.type == "meta":
            raise quire.UnsupportedError(f"{name} is not in memory (it is on the meta device)")
        kind = type(tensor)
        if kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            self._part.tensors.append((name, tensor))
            return
        self._fact(name, (kind.__qualname__, tuple(tensor.shape), tensor.dtype))
        if hasattr(tensor, "__tensor_flatten__"):  # wraps others
            inner, context = tensor.__tensor_flatten__()
            self._value(f"{name} context", context, depth + 1)
            for key in inner:
                self._tensor(f"{name}.{key}", getattr(tensor, key), depth)
        else:
            self._part.tensors.append((name, tensor))
            for key, item in self._items(vars(tensor)):
                self._value(f"{name}.{key}", item, depth + 1)

    def _again(self, name: str, thing: Any) -> bool:
        """Whether it was seen under another name, which is a fact then."""
        first = self._seen.setdefault(id(thing), name)
        if first is name:
            return False
        self._fact(name, first)
        return True


_KEYED = (torch.nn.ModuleDict, torch.nn.ParameterDict)


def _function_name(function: Any) -> str:
    """The same in every process for what can be imported; else of this process alone."""
    return _names.get(function) or _name_function(function)


def _name_function(function: Any) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    if "<" in name or getattr(function, "__closure__", None) and not hasattr(
            function, "__wrapped__"):
        name += f" {_token(function).hex()}"
    _names[function] = name
    return name


_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_tokens: dict[int, tuple[Callable[[], Any], bytes]] = {}
_unpacked_objects: dict[int, tuple[Any, Any]] = {}


def _token(thing: Any) -> bytes:
    """A random name for what cannot be compared with anything but itself."""
    if isinstance(thing, types.MethodType):
        return _token(thing.__self__) + _token(thing.__func__)
    known = _tokens.get(id(thing))
    if known is not None and known[0]() is thing:
        return known[1]
    key, token = id(thing), os.urandom(16)
    try:
        reference: Callable[[], Any] = weakref.ref(thing, lambda _: _tokens.pop(key, None))
    except TypeError:
        def reference() -> Any:
            return thing
    _tokens[key] = reference, token
    return token


def _unpacked(packed: Any) -> Any:
    known = _unpacked_objects.get(id(packed))
    if known is None:
        known = _unpacked_objects[id(packed)] = packed, packed.__getstate__()
    return known[1]


# ---- Tensors ----

def _digest(item: tuple[str, torch.Tensor]) -> bytes:
    name, tensor = item
    tensor = tensor.detach().cpu()
    made = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=32)
    if tensor.layout != torch.strided:
        raise quire.UnsupportedError(f"{name}: a weight of layout {tensor.layout}")
    if tensor.is_quantized:
        made.update(repr(tensor.qscheme()).encode())
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            made.update(repr((tensor.q_scale(), tensor.q_zero_point())).encode())
        else:
            made.update(bytes_of(tensor.q_per_channel_scales()))
            made.update(bytes_of(tensor.q_per_channel_zero_points()))
        tensor = tensor.int_repr()
    made.update(bytes_of(tensor))
    return made.digest()


# ---- Fingerprints ----


class Watch:
    """The fingerprints of one model. Threads: any."""

    def __init__(self, model: torch.nn.Module):
        self._model = weakref.ref(model)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[Mark, bytes, bytes]] = {}  # mark, sample, digest
        self._looked: Look | None = None
        self._hashed: Look | None = None  # whose digests are in _parts
        self._parts: dict[str, bytes] = {}  # the base is ""
        self._salt = b""

    def look(self) -> Look:
        """Raises: UnsupportedError the model has something that cannot be compared."""
        look = self._looked
        if look is None or not look.holds():
            model = self._model()
            assert model is not None
            look = self._looked = _Walk(model).look()
        return look

    def rest(self) -> None:
        """Holds nothing of the model until the next look."""
        with self._lock:
            self._looked = self._hashed = None

    def fingerprints(self, look: Look, rows: int, *, thorough: bool = False) -> list[bytes]:
        """32 bytes for each row of a batch; equal ones compute equal K and V of equal tokens.

        thorough: compares samples of the weights too, for writes that torch does not count.
        """
        with self._lock:
            if thorough or look is not self._hashed:
                self._hash(look, thorough)
            made = []
            for row in range(rows):
                digest = hashlib.blake2b(self._salt + self._parts[""], digest_size=32)
                for adapter in look.of_row(row):
                    digest.update(adapter.encode() + b"\0" + self._parts.get(adapter, b""))
                made.append(digest.digest())
            return made

    def distrust(self) -> None:
        """Gives everything another fingerprint, of this process alone."""
        with self._lock:
            self._salt = os.urandom(32)

    def _hash(self, look: Look, thorough: bool) -> None:
        parts = {"": look.base, **{f"/{name}": part for name, part in look.adapters.items()}}
        changed: list[tuple[tuple[str, str], torch.Tensor]] = []
        for part_name, part in parts.items():
            for name, tensor in part.tensors:
                known = self._known.get((part_name, name))
                if known is None or known[0] != mark(tensor) or (
                        thorough and known[1] != sample(tensor)):
                    changed.append(((part_name, name), tensor))
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            digests = pool.map(_digest, [(key[1], tensor) for key, tensor in changed])
            for (key, tensor), digest in zip(changed, digests):
                self._known[key] = mark(tensor), sample(tensor), digest
        self._hashed, self._parts = look, {}
        for part_name, part in parts.items():
            made = hashlib.blake2b(repr(part.facts).encode(), digest_size=32)
            for name, _ in part.tensors:
                made.update(name.encode() + b"\0" + self._known[part_name, name][2])
            self._parts[part_name.removeprefix("/")] = made.digest()


_watches: weakref.WeakKeyDictionary[Any, Watch] = weakref.WeakKeyDictionary()


def watch_of(model: torch.nn.Module) -> Watch:
    """The one watch of a model."""
    return _watches.setdefault(model, Watch(model))
