"""attach(): a model and its cache."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import torch

import quire
from quire._shared import Lease

from . import _attention, _model
from ._prompt import PromptCache, Row
from ._stream import stream

_SPECULATION_TOKENS = 64  # that one forward may feed besides the prompt, as prompt lookup does


class _Hooks:
    """What attaching changes at a model, once for all caches of it, and undone with the last."""

    def __init__(self, model: Any):
        self.before = model.config._attn_implementation
        self.caches = 0
        model.set_attn_implementation(_attention.NAME)
        self.handles = [
            model.register_forward_pre_hook(_begin, with_kwargs=True),
            model.register_forward_hook(_end, with_kwargs=True, always_call=True),
        ]
        for name in ("generate_batch", "init_continuous_batching"):
            setattr(model, name, _refuse_continuous_batching)

    def undo(self, model: Any) -> None:
        for handle in self.handles:
            handle.remove()
        for name in ("generate_batch", "init_continuous_batching"):
            delattr(model, name)
        model.set_attn_implementation(self.before)


_hooks: weakref.WeakKeyDictionary[Any, _Hooks] = weakref.WeakKeyDictionary()
_hooks_lock = threading.Lock()


def _hook(model: Any) -> None:
    with _hooks_lock:
        if model not in _hooks:
            _hooks[model] = _Hooks(model)
        _hooks[model].caches += 1


def _unhook(reference: weakref.ref[Any]) -> None:
    model = reference()
    if model is None:
        return
    with _hooks_lock:
        _hooks[model].caches -= 1
        if _hooks[model].caches == 0:
            _hooks.pop(model).undo(model)


def _refuse_continuous_batching(*arguments: Any, **options: Any) -> None:
    raise quire.UnsupportedError(
        "generate_batch has a paged cache of its own; use generate, or close the attached cache"
    )


def _begin(model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    cache = options.get("past_key_values")
    if not isinstance(cache, PromptCache):
        return None
    if cache.owner.model is not model:
        raise quire.InvalidArgumentError("the cache is of another model")
    if arguments:
        options = {"input_ids": arguments[0], **options}
    if len(arguments) > 1 or options.get("input_ids") is None:
        raise quire.UnsupportedError(
            "Quire finds prompts by their token ids: call the model with input_ids, and give the "
            "rest by name"
        )
    return (), cache.begin(options["input_ids"], options)


def _end(model: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
    cache = options.get("past_key_values")
    if isinstance(cache, PromptCache):
        if output is None:  # the forward raised, and is still raising
            cache.abort()
        else:
            cache.end()


def attach(
    model: Any,
    hot_gb: float = 2,
    kv: str | None = None,
    store: str | os.PathLike[str] | quire.DiskStore | None = None,
    *,
    store_gb: float = 8,
    block_tokens: int = 16,
    threads: int | None = None,
    shared_budget: quire.SharedBudget | None = None,
) -> AttachedCache:
    """Puts a Quire cache under a Hugging Face model, until it is closed.

    hot_gb: its hard budget in 10^9 bytes.
    kv: a name of quire.CODECS; None: K and V as the model computes them.
    store: a folder where blocks outlive the process, for one process at a time: who names it again
    in this process shares it; or a quire.DiskStore. None: memory only.
    store_gb: the hard cap of a folder's files in 10^9 bytes.
    block_tokens: a power of two from 16 to 256; prefixes are shared by whole blocks.
    threads: of attention; None: torch.get_num_threads().
    shared_budget: pays for this cache too, besides hot_gb, beside caches of other models.

    The model's attention implementation becomes "quire", which is "sdpa" for other caches. Weights
    are hashed at the first prompt, once per model.

    Raises: UnsupportedError names what Quire lacks for this model; InvalidArgumentError;
    NoSpaceError hot_gb holds no block; BusyError another process has the store.
    """
    lease = None
    if store is not None and not isinstance(store, quire.DiskStore):
        lease = Lease(store, int(store_gb * 1e9))
        store = lease.store
    try:
        return AttachedCache(
            model, hot_gb, kv, store, lease, block_tokens, threads or torch.get_num_threads(),
            shared_budget,
        )
    except Exception:
        if lease is not None:
            lease.end()
        raise


class AttachedCache:
    """The cache of one model: made by attach(). Threads: any, each with its own PromptCache."""

    def __init__(
        self,
        model: Any,
        hot_gb: float,
        kv: str | None,
        store: quire.DiskStore | None,
        lease: Lease | None,  # of the store, where close() ends it
        block_tokens: int,
        threads: int,
        shared_budget: quire.SharedBudget | None,
    ):
        compute = _model.compute_type(model)
        codec = kv or compute
        self.windows = _model.layer_windows(model)
        self.cache = quire.Cache(
            groups=_model.layer_groups(model),
            hot_bytes=int(hot_gb * 1e9),
            codec=codec,
            open_codec=None if codec in ("f32", "f16", "bf16") else _open_codec(compute),
            block_tokens=block_tokens,
            compute=compute,
            arithmetic=_model.arithmetic(),
            store=store,
            shared_budget=shared_budget,
        )
        self._store, self._lease = store, lease
        if lease is not None:  # dropped without close(), as by the second run of a notebook's cell
            weakref.finalize(self, lease.end)
        self._secret = None if store is None else store.secret()
        self.attention = quire.Attention(threads)
        self.model = model
        self._prompts: weakref.WeakSet[PromptCache] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._tokens = {"hit_tokens": 0, "loaded_tokens": 0, "skipped_tokens": 0}
        _hook(model)
        self._unhook = weakref.finalize(self, _unhook, weakref.ref(model))

    def for_prompt(self, input_ids: Any, attention_mask: Any = None) -> PromptCache:
        """A cache for one call of `generate` with these ids, which starts with what Quire has.

        input_ids: [tokens] or [batch, tokens], as `generate` will get them.
        attention_mask: the same shape, zeros for the padding on the left; None: no padding. Give
        the same mask to `generate`.

        Raises: UnsupportedError padding elsewhere; NoSpaceError the budget has no room for the
        prompts: close other prompts' caches, or attach with a larger hot_gb.
        """
        ids = torch.atleast_2d(torch.as_tensor(input_ids))
        mask = torch.ones_like(ids) if attention_mask is None else torch.atleast_2d(
            torch.as_tensor(attention_mask))
        if ids.ndim != 2 or ids.shape != mask.shape or ids.numel() == 0:
            raise quire.InvalidArgumentError(
                f"input_ids of shape {tuple(ids.shape)} with a mask of {tuple(mask.shape)}"
            )
        for prompt in self._live_prompts():
            if prompt.thread == threading.get_ident():
                prompt.flush()  # the answers of this thread's calls so far
        identity = quire.Identity(
            _model.fingerprint(self.model),
            position_encoding=type(self.model).__qualname__,
            domain="transformers",
            domain_secret=self._secret,
        )
        rows: list[Row] = []
        try:
            for row_ids, row_mask in zip(ids, mask.bool()):
                rows.append(self._open(row_ids, row_mask, identity))
        except Exception:
            for row in rows:
                row.sequence.close()
            raise
        made = PromptCache(self, rows, ids)
        with self._lock:
            self._prompts.add(made)
        self._count("skipped_tokens", sum(max(made.skipped_columns - row.pad, 0) for row in rows))
        return made

    def stream(
        self, input_ids: Any, attention_mask: Any = None, **options: Any
    ) -> AsyncIterator[int]:
        """The new tokens of one prompt as they come, computed beside the event loop of asyncio.

            async for token in cache.stream(ids, max_new_tokens=64): ...

        input_ids: [tokens] or [1, tokens]; attention_mask: as for_prompt.
        options: those of `generate`, no beams. Each stream computes on a thread of its own; to
        leave the loop or to cancel the task ends it after its next token.

        Raises: as for_prompt and `generate`; InvalidArgumentError several prompts.
        """
        return stream(self, input_ids, attention_mask, options)

    def _live_prompts(self) -> list[PromptCache]:
        with self._lock:
            return list(self._prompts)

    def _count(self, name: str, tokens: int) -> None:
        with self._lock:
            self._tokens[name] += tokens

    def _open(self, ids: torch.Tensor, mask: torch.Tensor, identity: quire.Identity) -> Row:
        pad = int((~mask).sum())
        if pad == len(ids) or not bool(mask[pad:].all()):
            raise quire.UnsupportedError("a row without tokens, or not padded on the left only")
        tokens = ids[pad:].tolist()
        plan = self.cache.acquire(tokens, identity)
        if plan.loadable_tokens > 0:
            resident = plan.resident_tokens
            plan = self.cache.load(plan).take()
            self._count("loaded_tokens", plan.resident_tokens - resident)
        found = plan.resident_tokens
        self._count("hit_tokens", found)
        sequence = self.cache.open(
            plan,
            on_full="halt",
            step_tokens=max(512, len(tokens) - found + _SPECULATION_TOKENS),
        )
        return Row(sequence, pad, pad + found, tokens[:found])

    def stats(self) -> dict[str, Any]:
        """Numbers of the cache: hot_bytes_used, published_blocks, lookup_tokens, hit_tokens, ...

        hit_tokens is what Quire had of all prompts, loaded_tokens the part that came from the
        store, and skipped_tokens what the model was spared, which is less where other rows of a
        batch had to compute those columns. "store" has the numbers of the store, if there is one.
        """
        with self._lock:
            tokens = dict(self._tokens)
        return {
            **self.cache.stats(),
            **tokens,
            "kv": self.cache.codecs["key"],
            "store": None if self._store is None else self._store.stats(),
        }

    def close(self) -> None:
        """Commits what prompts have computed, and gives the model its own attention back.

        With a store it returns when everything is durable. Raises: IoError, NoSpaceError some of
        it could not be written; the cache is closed then too.
        """
        if self.cache.closed:
            return
        for prompt in self._live_prompts():
            prompt.close()
        self._unhook()
        try:
            if self._store is not None:
                self._store.flush()
        finally:
            self.cache.close()
            if self._lease is not None:
                self._lease.end()

    def __enter__(self) -> AttachedCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _open_codec(compute: str) -> str:
    """Of what is not encoded yet: two bytes a value, with the model's own range."""
    return "bf16" if compute == "bf16" else "f16"
