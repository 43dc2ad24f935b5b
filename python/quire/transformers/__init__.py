"""Quire under Hugging Face transformers: prompts share what they have in common.

    from quire.transformers import attach

    cache = attach(model, hot_bytes=2_000_000_000, kv="int8")
    out = model.generate(ids, attention_mask=mask, past_key_values=cache.for_prompt(ids, mask))

The attention of the model reads Quire's blocks in place. docs/adapters/transformers.md says what is
supported; anything else is refused with ``quire.UnsupportedError``.
"""

from ._attach import AttachedCache, attach
from ._prompt import PromptCache

__all__ = ["AttachedCache", "PromptCache", "attach"]
