"""Text to try tokenizers on: many scripts, and everything that cutting text gets wrong."""

import pathlib
import random
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Assigned long ago, so that every Unicode version agrees on them.
SCRIPTS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0x61, 0x7A), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x17F)],
    "cyrillic": [(0x410, 0x44F), (0x400, 0x45F)],
    "greek": [(0x391, 0x3A1), (0x3A3, 0x3C9)],
    "arabic": [(0x621, 0x63A), (0x641, 0x652), (0x660, 0x669)],
    "hebrew": [(0x5D0, 0x5EA), (0x5B0, 0x5BD)],
    "devanagari": [(0x904, 0x939), (0x93E, 0x94D), (0x966, 0x96F)],
    "thai": [(0xE01, 0xE3A), (0xE40, 0xE4E)],
    "han": [(0x4E00, 0x9FA5)],
    "kana": [(0x3041, 0x3096), (0x30A1, 0x30FA)],
    "hangul": [(0xAC00, 0xD7A3)],
    "jamo": [(0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2)],
    "marks": [(0x300, 0x34E), (0x61, 0x7A)],
    "symbols": [(0x2190, 0x21FF), (0x2200, 0x22FF), (0x20A0, 0x20BF), (0x2460, 0x24FF)],
    "letters_far": [(0x1D400, 0x1D454), (0x10400, 0x1044F), (0x1F130, 0x1F149), (0xFF01, 0xFF5E)],
    "numbers": [(0x30, 0x39), (0x660, 0x669), (0xB2, 0xB3), (0x2160, 0x216B), (0xBC, 0xBE)],
}
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F44D\U0001F3FD",
         "\u2764\uFE0F", "\U0001F1FA\U0001F1F8", "\U0001F3F4\u200D\u2620\uFE0F", "1\uFE0F\u20E3"]
SPACES = [" ", " ", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n", "\n ",
          "\u00A0", "\u3000", "\u2009", "\u200B", "\u0085", "\u2028", "\x0b", "\x0c", "\x1c",
          "\u180E", "\uFEFF", "   \n   ", "\t\t"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'ve", "'M", "'ll", "'LL", "'d", "'D",
                "\u2019s", "'\u017F", "'x", "''", "n't", "'\u212A"]
CODE = ["def f(x):\n    return x**2\n", "if (a<b) { c++; } // comment\n", "#include <stdio.h>\r\n",
        "SELECT * FROM t WHERE id=1;", "<div class=\"a\">&nbsp;</div>", "a_b-c.d/e\\f|g",
        "0x1F+3.14e-10", "https://example.org/a?b=c&d=%20", "{\"k\": [1, 2, null]}",
        "$x = $y['z'];", "/* */", "!!! ??? ..."]
# Compositions, their order and their exclusions.
COMPOSED = ["e\u0301\u0323", "\u1E9B\u0323", "\uAC00\u11A8", "\u212B", "\u2126", "\u0344",
            "\u0958", "\uFB01", "\u0CC6\u0CC2\u0CD5", "\U0001D15E"]
WORDS = "the of and to in a is that it was for on are with as I his they be at one have".split()


def word(rng: random.Random) -> str:
    ranges = SCRIPTS[rng.choice(list(SCRIPTS))]
    count = 1 + int(rng.expovariate(0.25))
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(min(count, 60)))


def line(rng: random.Random, extra: list) -> str:
    parts = []
    for _ in range(rng.randint(1, 24)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(word(rng))
        elif kind < 0.60:
            parts.append(rng.choice(WORDS))
        elif kind < 0.68:
            parts.append(rng.choice(CONTRACTIONS))
        elif kind < 0.74:
            parts.append(rng.choice(EMOJI))
        elif kind < 0.80:
            parts.append(rng.choice(CODE + COMPOSED))
        elif kind < 0.88:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 12))))
        elif kind < 0.93:
            parts.append(rng.choice("!\"#$%&()*+,-./:;<=>?@[]^_`{|}~") * rng.randint(1, 4))
        elif extra and kind < 0.97:
            parts.append(rng.choice(extra))
        if rng.random() < 0.7:
            parts.append(rng.choice(SPACES))
    return "".join(parts)


def any_character(rng: random.Random) -> str:
    while True:
        code = rng.choice([rng.randint(0, 0x7F), rng.randint(0, 0x7FF), rng.randint(0, 0xFFFF),
                           rng.randint(0, 0x10FFFF)])
        # Python 3.11 knows Unicode 14, as PCRE2 10.42 does; `tokenizers` knows younger characters.
        if unicodedata.category(chr(code)) not in ("Cs", "Cn"):
            return chr(code)


def repository_text() -> list:
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/base/*.h"),
                    *ROOT.glob("tests/hf/*.py"), ROOT / "models/tiny/heldout.txt"])
    return [path.read_text(encoding="utf-8")[:20_000] for path in files]


def texts(seed: int, bytes_wanted: int, extra: list) -> list:
    """Lines and paragraphs of random text, and the repository's own, of at least bytes_wanted."""
    rng = random.Random(seed)
    made = repository_text()
    total = sum(len(text.encode()) for text in made)
    while total < bytes_wanted:
        text = "\n".join(line(rng, extra) for _ in range(rng.choice([1, 1, 1, 5, 40])))
        made.append(text)
        total += len(text.encode())
    return made


def random_strings(seed: int, count: int, extra: list) -> list:
    """Short strings of any characters, and of the troublesome ones."""
    rng = random.Random(seed)
    made = ["", " ", "  ", "\n", "a", " a", "a "]
    for _ in range(count):
        pool = rng.choice([SPACES, CODE + COMPOSED + EMOJI, extra + SPACES, None, None])
        made.append("".join(rng.choice(pool) if pool and rng.random() < 0.8 else any_character(rng)
                            for _ in range(rng.randint(1, 30))))
    return made
