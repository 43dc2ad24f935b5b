"""Files of models, and digests of files."""

import hashlib
import os
import re


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of what a file holds, in hexadecimal. Raises OSError. Python 3.10 has no
    hashlib.file_digest."""
    made = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(4 << 20):
            made.update(piece)
    return made.hexdigest()


def gguf_files(path: str) -> list[str]:
    """The files of a model of llama.cpp, of which the first is named."""
    parts = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path)
    if parts is None:
        return [path]
    return [f"{parts[1]}-{number:05}-of-{parts[2]}.gguf" for number in range(1, int(parts[2]) + 1)]
