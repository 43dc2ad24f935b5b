"""What names the weights that an engine has loaded, and whether they are still those."""

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from quire._errors import UnsupportedError
from quire._tensors import Mark, mark, sample

_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.py")  # code decides values, too
_NO_VALUES = ("_name_or_path", "transformers_version")  # of a model's config
_CLOCK_S = 2.0  # by which a process's start and a file's time may be wrong
_SAMPLED_MAX = 64  # tensors


def weight_files(model: str, revision: str | None, downloads: str | None) -> list[Path]:
    """The files that a model's weights are loaded from. model: a folder, or a name on the hub, of
    which `revision` was downloaded to the folder `downloads` (None: where the hub's client does).

    Raises UnsupportedError: there are none."""
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        folder = Path(snapshot_download(model, revision=revision, cache_dir=downloads,
                                        local_files_only=True))
    files = sorted(path for form in _WEIGHT_FILES for path in folder.glob(form))
    if not any(path.suffix != ".py" for path in files):
        raise UnsupportedError(f"quire finds no weights in {folder}")
    return files


def changed_after(files: Iterable[Path], started_s: float) -> str:
    """Why files may not hold what a process loaded that began at started_s; "" if they do."""
    changed = [path.name for path in files
               if max(path.stat().st_ctime, path.stat().st_mtime) > started_s - _CLOCK_S]
    return f"{changed[0]} changed after the engine began to start" if changed else ""


def described(config: Any) -> dict[str, Any]:
    """What of a model's config (of transformers) decides values."""
    described: dict[str, Any] = config.to_dict()
    for name in _NO_VALUES:
        described.pop(name, None)
    return described


def processor() -> list[str]:
    """What kernels for processors choose their instructions, and the layout of K and V, by."""
    return [platform.machine(), torch.backends.cpu.get_cpu_capability(),
            f"amx {torch.cpu._is_amx_tile_supported()}"]


def identity_of(facts: Any) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def process_start_s() -> float:
    return float(psutil.Process(os.getpid()).create_time())


class Watch:
    """Tells whether models' weights changed since they were loaded: other tensors, other memory,
    or other values among samples of some of them, as engines write weights through `.data`, which
    torch does not count."""

    def __init__(self, models: list[torch.nn.Module]) -> None:
        self._models = models
        self._marks: list[tuple[str, Mark]] = []
        self._samples: list[bytes] = []

    def remember(self) -> None:
        """Takes the weights as they are for those that were loaded."""
        named = self._named()
        self._marks = [(name, mark(tensor)) for name, tensor in named]
        self._samples = [sample(tensor) for _, tensor in named]

    def changed(self, *, thorough: bool) -> bool:
        """thorough: samples of all tensors are compared."""
        named = self._named()
        step = 1 if thorough else len(named) // _SAMPLED_MAX + 1
        return (self._marks != [(name, mark(tensor)) for name, tensor in named] or
                self._samples[::step] != [sample(tensor) for _, tensor in named[::step]])

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, tensor.detach()) for model in self._models
                for name, tensor in model.named_parameters()]
