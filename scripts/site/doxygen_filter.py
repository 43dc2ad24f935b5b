#!/usr/bin/env python3
"""Prints a public header in the form that Doxygen 1.9 reads (mkdocs.yml names it as INPUT_FILTER).

The comment at the top becomes the file's description, a comment behind or above a member describes
that member, and the labelled lines of a docstring (Errors:, Threads:, ...) become a list.
"""

import pathlib
import re
import sys

LABELS = "Shape|Units|Errors|Effects|Threads|Lifetime|Cost|Source"
# Code, then a comment: `uint32_t layers = 0;  // of the model`. Not behind a scope's end.
TRAILING = re.compile(r"^(\s*[^\s/#}].*?\s)//(?!/) ?(.*)$")
COMMENT = re.compile(r"^(\s*)//(?!/) ?(.*)$")
VISIBILITY = re.compile(r'\[\[gnu::visibility\("\w+"\)\]\] ')


def head(lines):
    """The comment that begins a file, as its description; what is indented there stays as it is."""
    yield "/// @file"
    yield "///"
    before = False
    for line in lines:
        text = line[2:].removeprefix(" ")
        indented = text.startswith("  ")
        if indented != before:
            yield "///"
        before = indented
        yield f"///     {text[2:]}" if indented else f"/// {text}"


def members(lines):
    """Comments behind members describe them, lines below with nothing but a comment go on with it;
    and so do comments above members. At the left margin there are only headings."""
    column = None  # of the comment that may go on
    for line in lines:
        trailing, comment = TRAILING.match(line), COMMENT.match(line)
        if trailing:
            column = len(trailing[1])
            yield f"{trailing[1]}///< {trailing[2]}"
        elif comment and column is not None and len(comment[1]) == column:
            yield f"{comment[1]}///< {comment[2]}"
        elif comment and comment[1]:
            column = None
            yield f"{comment[1]}/// {comment[2]}"
        else:
            column = None
            yield line


def filtered(text):
    text = VISIBILITY.sub("", text)  # which Doxygen 1.9 cannot read
    text = re.sub(rf"^(\s*/// )({LABELS}):\s+", r"\1- **\2:** ", text, flags=re.MULTILINE)
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "\n".join([*head(lines[:end]), *members(lines[end:])]) + "\n"


if __name__ == "__main__":
    print(filtered(pathlib.Path(sys.argv[1]).read_text()), end="")
