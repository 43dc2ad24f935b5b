"""Digests of files."""

import hashlib
import os


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of what a file holds, in hexadecimal. Raises OSError. Python 3.10 has no
    hashlib.file_digest."""
    made = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(4 << 20):
            made.update(piece)
    return made.hexdigest()
