"""Fetch the training text and cut it into a training part and a held-out part.

The text is the six novels of Jane Austen (public domain) as packaged by Debian in
r-cran-janeaustenr; it is fetched by package name so that anybody can repeat the training.
The ends of two novels are held out: the model never sees them, and they serve both as the
measure of its English and as the filler of the retrieval test.
"""

import argparse
import re
import struct
import subprocess
import zlib
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
RDB = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
HELD_OUT = {"PERSUASION": 100_000, "NORTHANGER ABBEY": 80_000}  # bytes kept from the end of each
STRSXP, CHARSXP = 16, 9  # R's type numbers of a vector of strings and of one string


def fetch(work: Path) -> bytes:
    """The package's lazy-load data base, downloaded by Debian's own client."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / RDB).exists():
        subprocess.run(["apt-get", "download", PACKAGE], cwd=work, check=True)
        deb = next(work.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg", "-x", deb.name, "."], cwd=work, check=True)
    return (work / RDB).read_bytes()


def string_vectors(rdb: bytes):
    """Every vector of strings in an R lazy-load data base.

    The file is a row of blocks, each a 4-byte length followed by a zlib stream of R's XDR
    serialisation; a vector of strings is short enough to decode here and spares a dependency.
    """
    while rdb:
        stream = zlib.decompressobj()
        block = stream.decompress(rdb[4:])
        rdb = stream.unused_data
        at = 14  # "X\n" and three version words
        if struct.unpack_from(">i", block, 2)[0] == 3:  # version 3 also names the encoding
            at += 4 + struct.unpack_from(">i", block, at)[0]
        flags, count = struct.unpack_from(">ii", block, at)
        if flags & 0xFF != STRSXP:
            continue
        at += 8
        lines = []
        for _ in range(count):
            flags, length = struct.unpack_from(">ii", block, at)
            assert flags & 0xFF == CHARSXP
            lines.append(block[at + 8 : at + 8 + length].decode("utf-8"))
            at += 8 + length
        yield lines


def unwrap(lines: list[str]) -> str:
    """One line a paragraph: the line breaks of the printed page carry no meaning."""
    text = "\n".join(line.strip() for line in lines).replace("_", "")
    paragraphs = re.split(r"\n{2,}", text)
    return "\n".join(re.sub(r"\s+", " ", p).strip() for p in paragraphs if p.strip()) + "\n"


def prepare(work: Path, heldout_file: Path) -> bytes:
    """Write the held-out text and return the training text."""
    train, heldout = [], []
    for lines in string_vectors(fetch(work)):
        book = unwrap(lines)
        title = book[:200].upper()
        keep = next((n for name, n in HELD_OUT.items() if name in title), 0)
        cut = book.index("\n", len(book) - keep) + 1 if keep else len(book)
        train.append(book[:cut])
        heldout.append(book[cut:])
    heldout_file.write_text("".join(heldout), encoding="utf-8")
    return "".join(train).encode("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/tiny"), help="scratch folder")
    args = parser.parse_args()
    heldout_file = Path(__file__).with_name("heldout.txt")
    text = prepare(args.work, heldout_file)
    (args.work / "train.txt").write_bytes(text)
    print(f"{len(text):,} bytes to train on, {heldout_file.stat().st_size:,} bytes held out")


if __name__ == "__main__":
    main()
