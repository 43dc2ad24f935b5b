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
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama import LlamaState
from llama_cpp.llama_cache import BaseLlamaCache

from quire._errors import Error, UnsupportedError
from quire._files import file_digest, gguf_files
from quire._llama_blocks import StateBlocks, ids
from quire._llama_states import parse
from quire.store import BlockStore

__all__ = ["QuireCache"]

_log = logging.getLogger(__name__)

# What changes the bytes of a state besides weights and tokens, as llama.cpp names it.
_PARAMETERS = ("n_ctx", "rope_scaling_type", "rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
               "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "type_k",
               "type_v", "flash_attn_type", "offload_kqv", "swa_full")


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
        _check_supported(llm)
        self._llm = llm
        self._owns_store = not isinstance(store, BlockStore)
        self._store = store if isinstance(store, BlockStore) else BlockStore(
            store, cap_bytes=cap_bytes, accepts_puts=True)
        self._blocks = StateBlocks(self._store, "llama_cpp " + _identity(llm), block_tokens)
        self._prompt_tokens = 0  # of the last lookup
        self._warned: set[str] = set()

    @property
    def cache_size(self) -> int:
        """Bytes on disk of what this model has stored."""
        return self._store.usage(self._blocks.namespace)["bytes_live"]

    def __contains__(self, key: Sequence[int]) -> bool:
        with self._failing_softly("look up"):
            return bool(self._blocks.find(ids(key)))
        return False

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """Restores the longest stored prefix into the model's context. KeyError: nothing is stored
        that the context does not have."""
        tokens = ids(key)
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
        tokens = ids(self._llm.input_ids[:count])
        if count == 0 or not np.array_equal(ids(key)[:count], tokens):
            return
        with self._failing_softly("store"):
            missing = self._blocks.missing(tokens, (self._prompt_tokens, count))
            if missing:
                self._blocks.put(missing, parse(self._save(), count))

    def close(self) -> None:
        """Makes everything durable, and closes the store if it was opened here."""
        if self._owns_store:
            self._store.close()
        else:
            self._store.flush()

    # -- Inside ------------------------------------------------------------------------------------

    def _restore(self, tokens: Any, evaluated: int) -> int:
        """Tokens that the context has afterwards; at most `evaluated`: it is as it was."""
        with self._failing_softly("load"):
            loaded = self._blocks.load(tokens, evaluated)
            if loaded is None:
                return 0
            state, count = loaded
            if self._load(state):
                self._llm.input_ids[:count] = tokens[:count]
                self._llm.n_tokens = count
                self._llm._requires_eval = True
                return count
            self._llm._ctx.kv_cache_clear()
            self._llm.reset()
        return 0

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
    described = {"weights": [file_digest(path) for path in gguf_files(llm.model_path)],
                 "adapter": adapter, "version": llama_cpp.__version__, "parameters": parameters,
                 "gpu_layers": llm.model_params.n_gpu_layers,
                 "machine": llama_cpp.llama_print_system_info().decode()}
    text = json.dumps(described, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
