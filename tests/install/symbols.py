"""What libquire.so may export: the functions of quire.h, and what the C++ headers declare."""

import re
import subprocess

# A C++ symbol is one of these, then quire::, then a name of the public headers.
KINDS = re.compile(r"^(typeinfo for |typeinfo name for |vtable for )?")


def exported(library):
    """The demangled defined dynamic symbols of a shared library, with their nm type letters."""
    out = subprocess.run(["nm", "-DC", "--defined-only", library], check=True, capture_output=True,
                         text=True).stdout
    return [(line.split()[1], line.split(maxsplit=2)[2]) for line in out.splitlines()]


def code_of(headers):
    """The headers' text without comments, so that a name in a comment declares nothing."""
    text = "\n".join(path.read_text() for path in headers)
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def c_functions(header):
    return set(re.findall(r"\b(quire_\w+)\(", code_of([header])))


def violations(symbols, functions, code):
    """One line for each symbol that must not be there."""
    names = set(re.findall(r"\b[A-Z]\w*\b", code))
    for kind, symbol in symbols:
        if symbol in functions and kind == "T":
            continue
        entity = KINDS.sub("", symbol)
        match = re.match(r"quire::(\w+)", entity)
        if match is None:
            yield f"{symbol}: not of quire"
        elif match.group(1) not in names:
            yield f"{symbol}: {match.group(1)} is in no public header"
        elif kind not in "TVWDRB":
            yield f"{symbol}: of kind {kind}"
