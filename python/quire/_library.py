"""Where libquire.so is, for the modules that call the C interface."""

import ctypes
import os
import pathlib

# The C interface is stable across patch versions only (docs/embedding.md).
SONAME = "libquire.so.0.2"


class LibraryNotFound(ImportError):
    """libquire.so is in none of the places where it is looked for."""


def candidates() -> list[str]:
    """Paths to try, in order: QUIRE_LIBRARY alone where it is set; else next to this package (also
    where a repaired wheel puts libraries), in the build folder of a checkout, and where the
    system's loader looks."""
    named = os.environ.get("QUIRE_LIBRARY")
    if named:
        return [named]
    package = pathlib.Path(__file__).resolve().parent
    folders = (package, package / "lib", package.parent / "quire.libs",
               package.parents[1] / "build" / "release")
    found = [str(path) for folder in folders for path in sorted(folder.glob("libquire[.-]*so*"))]
    return found + [SONAME]


def load() -> ctypes.CDLL:
    """Loads the library. Every call through it lets other threads of Python run.

    Raises LibraryNotFound, which names what was tried."""
    tried = []
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise LibraryNotFound("libquire.so was not found; build it (`make build`) or set "
                          "QUIRE_LIBRARY to its path. Tried: " + "; ".join(tried))
