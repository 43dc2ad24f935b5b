"""The arguments of kernels.py, which are refused before llama.cpp is compiled: run as a program, this
only looks at them. Needs the standard library alone.
"""

import argparse
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GROUP = 2  # query heads of a KV head, as the model's shape has them
# What `quire bench` has cases of, by the query heads of a KV head.
DEPTHS = {GROUP: (4096, 16384, 32768), 4: (32768,), 8: (32768,)}
PROMPTS = (512, 4096)
KV = ("f16", "q8_0", "q4_0")


def some_of(choices, convert):
    """A type for argparse: a list like 1,2 of such values, or none."""
    def parse(text):
        values = [convert(value) for value in text.split(",") if value]
        for value in values:
            if value not in choices:
                raise argparse.ArgumentTypeError(
                    f"{value} is not measured; there are {', '.join(map(str, choices))}")
        return values
    return parse


def parse(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quire", default=str(ROOT / "build/release/quire"))
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "build/peers",
                        help="folder of the random models")
    parser.add_argument("--depths", type=some_of(DEPTHS[GROUP], int), default=list(DEPTHS[GROUP]))
    parser.add_argument("--groups", type=some_of(DEPTHS, int), default=[GROUP],
                        help="query heads of a KV head; more than 2 at a depth of 32768 alone")
    parser.add_argument("--prompts", type=some_of(PROMPTS, int), default=list(PROMPTS),
                        help="tokens of prompts")
    parser.add_argument("--kv", type=some_of(KV, str), default=list(KV))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    for group in args.groups:
        if args.kv and not set(args.depths) & set(DEPTHS[group]):
            parser.error(f"--groups {group}: measured at a depth of "
                         f"{', '.join(map(str, DEPTHS[group]))} alone; name it with --depths")
    return args


if __name__ == "__main__":
    parse(__doc__)
