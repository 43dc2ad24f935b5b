"""attach(): a model and its cache."""

from __future__ import annotations

import functools
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator
from typing import Any

import torch

import quire
from quire._names import former
from quire._shared import Lease

from . import _alibi, _attention, _identity, _model, _probe, _trial
from ._prompt import PromptCache, Row
from ._stream import stream

_MISMATCHES_MAX = 3  # of probes in a row, before nothing is reused any more
_SPECULATION_TOKENS = 64  # that one forward may feed besides the prompt, as prompt lookup does


class _Hooks:
    """What attaching changes at a model, once for all caches of it, and undone with the last."""

    def __init__(self, model: Any, own_attention: bool):
        self.before = model.config._attn_implementation
        self.caches = 0
        self.replaced: list[Any] = []
        if not own_attention:
            model.set_attn_implementation(_attention.NAME)
            self.replaced = _alibi.replace(model)
        self.handles = [
            model.register_forward_pre_hook(_begin, with_kwargs=True),
            model.register_forward_hook(_end, with_kwargs=True, always_call=True),
        ]
        for name in ("generate_batch", "init_continuous_batching"):
            setattr(model, name, _refuse_continuous_batching)
        model.prepare_inputs_for_generation = _checked(model.prepare_inputs_for_generation)

    def undo(self, model: Any) -> None:
        for handle in self.handles:
            handle.remove()
        for name in _identity.OWN_FIELDS:
            delattr(model, name)
        _alibi.restore(self.replaced)
        model.set_attn_implementation(self.before)
        _identity.watch_of(model).rest()


_hooks: weakref.WeakKeyDictionary[Any, _Hooks] = weakref.WeakKeyDictionary()
_hooks_lock = threading.Lock()


def _hook(model: Any, own_attention: bool) -> None:
    with _hooks_lock:
        if model not in _hooks:
            _hooks[model] = _Hooks(model, own_attention)
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


def _checked(prepare: Any) -> Any:
    """What generate asks of a model before each forward: some drop the cache there."""

    @functools.wraps(prepare)
    def checked(*arguments: Any, **options: Any) -> Any:
        made = prepare(*arguments, **options)
        given = options.get("past_key_values")
        if isinstance(given, PromptCache) and made.get("past_key_values") is not given:
            raise quire.UnsupportedError(
                f"{type(given.owner.model).__name__} drops its cache at this length, to compute "
                "all tokens in another way (longrope beyond its original length): generate "
                "without Quire"
            )
        return made

    return checked


# A forward's arguments of tensors that Quire knows.
_KNOWN = ("input_ids", "attention_mask", "position_ids", "past_key_values", "logits_to_keep")


def _has_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


def _begin(model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    cache = options.get("past_key_values")
    if not isinstance(cache, PromptCache):
        return None
    _trial.refuse_compiled(model)
    if cache.owner.model is not model:
        raise quire.InvalidArgumentError("the cache is of another model")
    if arguments:
        options = {"input_ids": arguments[0], **options}
    if len(arguments) > 1 or options.get("input_ids") is None:
        raise quire.UnsupportedError(
            "Quire finds prompts by their token ids: call the model with input_ids, and give the "
            "rest by name"
        )
    for name, value in options.items():
        if name not in _KNOWN and _has_tensors(value):
            raise quire.UnsupportedError(
                f"{name}: Quire finds prompts by their token ids alone, and this decides K and V "
                "too")
    return (), cache.begin(options["input_ids"], options)


def _end(model: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
    cache = options.get("past_key_values")
    if isinstance(cache, PromptCache):
        if output is None:  # the forward raised, and is still raising
            cache.abort()
        else:
            cache.end()


_identity.OWN_HOOKS.update((_begin, _end))


@former(hot_gb="hot_bytes", store_gb="store_bytes")
def attach(
    model: Any,
    hot_bytes: int = 2_000_000_000,
    kv: str | None = None,
    store: str | os.PathLike[str] | quire.DiskStore | None = None,
    *,
    store_bytes: int = 8_000_000_000,
    block_tokens: int = 16,
    threads: int | None = None,
    probe: bool = True,
    shared_budget: quire.SharedBudget | None = None,
    resident_tokens: int = 0,
    step_tokens: int = 512,
) -> AttachedCache:
    """Puts a Quire cache under a Hugging Face model, until it is closed.

    hot_bytes: its hard budget.
    kv: a name of quire.CODECS; None: K and V as the model computes them.
    store: a folder where blocks outlive the process, for one process at a time: who names it again
    in this process shares it; or a quire.DiskStore. None: memory only.
    store_bytes: the hard cap of a folder's files.
    block_tokens: a power of two from 16 to 256; prefixes are shared by whole blocks.
    threads: of attention; None: torch.get_num_threads().
    probe: of each hit the last block is computed again and compared, for changes of the model that
    nothing tells; False: call AttachedCache.weights_changed after such changes.
    shared_budget: pays for this cache too, besides hot_bytes, beside caches of other models.
    resident_tokens: of each prompt at least so many of its last tokens stay in memory; those before them
    leave it once the store has them, and attention reads them back, with the same tokens as an answer. Then
    each forward has at most step_tokens tokens (pass prefill_chunk_size to `generate`), hits are not probed,
    and there are no beams. 0: all of a prompt stays in memory.

    The model may be a peft.PeftModel. Its attention implementation becomes "quire", which is "sdpa"
    for other caches. It is tried on a few tokens here. Weights are hashed at the first prompt, once
    per model.

    Raises: UnsupportedError names what Quire lacks for this model; InvalidArgumentError;
    NoSpaceError hot_bytes holds no block; BusyError another process has the store.
    """
    model = _model.base_model(model)
    if resident_tokens and store is None:
        raise quire.InvalidArgumentError("resident_tokens: the rest of a prompt needs a store: name a folder")
    lease = None
    if store is not None and not isinstance(store, quire.DiskStore):
        lease = Lease(store, store_bytes)
        store = lease.store
    try:
        return AttachedCache(
            model, hot_bytes, kv, store, lease, block_tokens, threads or torch.get_num_threads(),
            probe and not resident_tokens, shared_budget, resident_tokens, step_tokens,
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
        hot_bytes: int,
        kv: str | None,
        store: quire.DiskStore | None,
        lease: Lease | None,  # of the store, where close() ends it
        block_tokens: int,
        threads: int,
        probe: bool,
        shared_budget: quire.SharedBudget | None,
        resident_tokens: int,
        step_tokens: int,
    ):
        compute = _model.compute_type(model)
        codec = kv or compute
        self.windows = _model.layer_windows(model)
        self.tokens_max = _model.tokens_max(model)
        self._watch = _identity.watch_of(model)
        look = self._watch.look()  # refuses what cannot be compared later
        ids = _trial.tokens_of(_model.text_config(model))
        shapes, logits = _trial.own(model, ids, len(self.windows))
        self.cache = quire.Cache(
            groups=_model.layer_groups(self.windows, shapes),
            hot_bytes=hot_bytes,
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
        self._short_logits = _model.takes(model, "logits_to_keep")
        self.takes_positions = _model.takes(model, "position_ids")
        self._probing = probe
        self._resident_tokens, self._step_tokens = resident_tokens, step_tokens
        self._query_heads = _model.query_heads(model)
        self._compute, self._codec = compute, codec
        self._mismatches = 0  # since the last probe that agreed
        self._prompts: weakref.WeakSet[PromptCache] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._counts = {"hit_tokens": 0, "loaded_tokens": 0, "skipped_tokens": 0, "probes": 0,
                        "probes_failed": 0}
        self.copies = False  # whether layers get K and V as tensors, and attend by themselves
        try:
            self._hook(ids, logits, look.quantized)
        except quire.UnsupportedError:
            if any(self.windows):
                raise
            if resident_tokens:
                raise quire.UnsupportedError(
                    f"resident_tokens={resident_tokens}: the layers of {type(model).__name__} attend by "
                    "themselves, to K and V that are all in memory") from None
            self.copies = True
            self._hook(ids, logits, look.quantized)

    def _hook(self, ids: torch.Tensor, logits: torch.Tensor, quantized: bool) -> None:
        """Puts the cache under the model, unless it then gives other logits."""
        _hook(self.model, self.copies)
        self._unhook = weakref.finalize(self, _unhook, weakref.ref(self.model))
        try:
            _trial.compare(self.model, self._try(ids), logits, self._compute, quantized)
        except Exception:
            self._unhook()
            raise

    def _try(self, ids: torch.Tensor) -> torch.Tensor:
        """The logits of a few tokens through Quire, which leave nothing behind."""
        plan = self.cache.acquire(ids[0].tolist(), quire.Identity(bytes(32)), reuse=False)
        sequence = self.cache.open(plan, on_full="halt", publish=False)
        past = PromptCache(self, [Row(sequence, None, 0, 0, [])], ids[:, :-1])
        try:
            return _trial.run(self.model, ids, past)
        finally:
            past.close()

    def for_prompt(self, input_ids: Any, attention_mask: Any = None) -> PromptCache:
        """A cache for one call of `generate` with these ids, which starts with what Quire has.

        input_ids: [tokens] or [batch, tokens], as `generate` will get them.
        attention_mask: the same shape, zeros for the padding on the left; None: no padding. Give
        the same mask to `generate`.

        Raises: UnsupportedError padding elsewhere; NoSpaceError the budget has no room for the
        prompts: close other prompts' caches, or attach with a larger hot_bytes.
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
        fingerprints = self._watch.fingerprints(self._watch.look(), len(ids), thorough=True)
        rows: list[Row] = []
        try:
            for row_ids, row_mask, fingerprint in zip(ids, mask.bool(), fingerprints):
                pad = int((~row_mask).sum())
                if pad == len(row_ids) or not bool(row_mask[pad:].all()):
                    raise quire.UnsupportedError(
                        "a row without tokens, or not padded on the left only")
                self.check_length(len(row_ids) - pad)
                rows.append(self._open(row_ids[pad:].tolist(), pad, fingerprint))
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

    def _count(self, name: str, number: int) -> None:
        with self._lock:
            self._counts[name] += number

    def check_length(self, tokens: int) -> None:
        """Raises: UnsupportedError K of so long a prompt differ from those of its beginnings."""
        if self.tokens_max is not None and tokens > self.tokens_max:
            raise quire.UnsupportedError(
                f"{tokens} tokens: beyond {self.tokens_max} this model computes other K for all "
                "tokens (its rope_type is dynamic or longrope); generate without Quire")

    def check_step(self, tokens: int) -> None:
        """Raises: InvalidArgumentError more than a forward may have where prompts stream."""
        if self._resident_tokens and tokens > self._step_tokens:
            raise quire.InvalidArgumentError(
                f"the model was called with {tokens} tokens, but where resident_tokens is set a forward has at "
                f"most {self._step_tokens} (step_tokens): pass prefill_chunk_size={self._step_tokens} to generate")

    def identity(self, fingerprint: bytes) -> quire.Identity:
        """Of blocks that a model of this fingerprint computes."""
        return quire.Identity(
            fingerprint, position_encoding=type(self.model).__qualname__, domain="transformers",
            domain_secret=self._secret)

    def _open(self, tokens: list[int], pad: int, fingerprint: bytes, reuse: bool = True) -> Row:
        identity = self.identity(fingerprint)
        plan = self.cache.acquire(
            tokens, identity, reuse=reuse and self._mismatches < _MISMATCHES_MAX)
        if self._resident_tokens:
            return self._open_streamed(plan, tokens, pad, fingerprint)
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
        return Row(sequence, fingerprint, pad, pad + found, tokens[:found])

    def _open_streamed(
        self, plan: quire.Plan, tokens: list[int], pad: int, fingerprint: bytes
    ) -> Row:
        """What the store has of the prompt is not loaded: attention reads it."""
        resident = plan.resident_tokens
        sequence = self.cache.open(
            plan, resident_tokens=self._resident_tokens, step_tokens=self._step_tokens,
            query_heads=self._query_heads)
        found = len(sequence)
        self._count("hit_tokens", found)
        self._count("loaded_tokens", max(found - resident, 0))
        return Row(sequence, fingerprint, pad, pad + found, tokens[:found])

    # ---- What a prompt's first forward asks ----

    def forward(self, **options: Any) -> None:
        """A forward of the model that nobody called."""
        if self._short_logits:
            options["logits_to_keep"] = 1
        with torch.no_grad():
            self.model(use_cache=True, **options)

    def computes(self, rows: list[Row], repeats: int = 1) -> bool:
        """Whether the model, as it is, is what computed the beginnings of these rows."""
        prints = self._watch.fingerprints(self._watch.look(), len(rows) * repeats)
        return all(row.fingerprint in (None, of) for row, of in zip(rows, prints[::repeats]))

    def settle(self, past: PromptCache, repeats: int) -> list[Row]:
        """The rows of a prompt whose first forward begins, each with what is there for it and true.

        repeats: of each row in the batch of that forward.
        """
        rows = past.rows
        if rows[0].fingerprint is None:
            return rows
        look = self._watch.look()
        self._look_up(past, self._watch.fingerprints(look, len(rows) * repeats)[::repeats])
        if not self._probing:
            return rows
        tolerance = _probe.tolerance(self._compute, self._codec, look)
        probed = _probe.differences(self, rows, 0 if look.row_adapters is None else repeats)
        self._count("probes", len(probed))
        unseen = [row for row, difference in probed if difference == float("inf")]
        if any(tolerance < difference < float("inf") for _, difference in probed):
            self._distrust()
            self._look_up(past, self._watch.fingerprints(look, len(rows) * repeats)[::repeats])
        elif len(unseen) < len(probed):
            self._mismatches = 0
        for at, row in enumerate(rows):
            if row.fingerprint and any(row.prefix == other.prefix for other in unseen):
                self._replace(past, at, row.fingerprint, reuse=False)
        return rows

    def _look_up(self, past: PromptCache, fingerprints: list[bytes]) -> None:
        for at, fingerprint in enumerate(fingerprints):
            if past.rows[at].fingerprint != fingerprint:
                self._replace(past, at, fingerprint)

    def _replace(
        self, past: PromptCache, at: int, fingerprint: bytes, reuse: bool = True
    ) -> None:
        old = past.rows[at]
        self._count("hit_tokens", -len(old.prefix))
        tokens = past.prompt[at, old.pad:].tolist()
        old.sequence.close()
        past.rows[at] = self._open(tokens, old.pad, fingerprint, reuse)

    def _distrust(self) -> None:
        self._count("probes_failed", 1)
        self._watch.distrust()
        self._mismatches += 1
        if self._mismatches == _MISMATCHES_MAX:
            warnings.warn(
                f"{_MISMATCHES_MAX} hits in a row differed from what the model computes: nothing "
                "is reused until weights_changed() is called", RuntimeWarning, stacklevel=2)

    def weights_changed(self) -> None:
        """Says that the model computes other K and V from here on: nothing before is found again.

        It costs nothing. Blocks made after it are of this process alone: a later one hashes the
        weights as it finds them.
        """
        self._watch.distrust()
        self._mismatches = 0

    def stats(self) -> dict[str, Any]:
        """Numbers of the cache: hot_bytes_used, published_blocks, lookup_tokens, hit_tokens, ...

        hit_tokens is what Quire had of all prompts, loaded_tokens the part that came from the
        store, and skipped_tokens what the model was spared, which is less where other rows of a
        batch had to compute those columns. probes are of hits (attach), probes_failed those that
        found another model. "store" has the numbers of the store, if there is one.
        """
        with self._lock:
            counts = dict(self._counts)
        return {
            **self.cache.stats(),
            **counts,
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
