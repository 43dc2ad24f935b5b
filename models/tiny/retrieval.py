"""The retrieval test: facts planted in prose, one of them asked for at the end.

A fact is a sentence ` The secret number of Martha=48213.` put between two sentences of the text;
the question is its beginning, ` The secret number of Martha=`, and the answer is what follows it,
`48213.`. A case is kept as a recipe (a slice of heldout.txt and what to plant in it)
rather than as a prompt, so that a thousand of them stay small. The names of the test are never
used in training.
"""

import argparse
import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FACT = " The secret number of {name}={value}."
QUESTION = " The secret number of {name}="
ANSWER = "{value}."
DIGITS = 5
SENTENCE_END = re.compile(rb"(?<=[a-z]{3}[.?!]) (?=[A-Z])")  # spares `Mr. Knightley`

TRAIN_NAMES = """
Adam Agnes Albert Alfred Alice Amanda Andrew Anna Anthony Arthur Barbara Beatrice Benjamin Bernard
Bertha Bridget Carl Caroline Catherine Cecil Charles Charlotte Christine Clara Claude Colin Conrad
Daniel David Deborah Dennis Diana Dorothy Douglas Edgar Edith Edmund Edward Eleanor Elizabeth Emily
Emma Eric Ernest Esther Eugene Evelyn Fanny Felix Florence Frances Frank Frederick Gabriel George
Gerald Gertrude Gilbert Gloria Gordon Grace Gregory Hannah Harold Harriet Harvey Helen Henry Herbert
Hilda Hugo Irene Isaac Isabel Jacob James Jane Jasper Jennifer Jessica Joan John Joseph Josephine
Judith Julia Karen Kenneth Laura Lawrence Leonard Lewis Lillian Linda Louisa Lucas Lucy Luther
Mabel Malcolm Margaret Maria Marion Mark Matilda Maurice Michael Mildred Miriam Nancy Nathan Neil
Nicholas Nora Norman Oliver Oscar Patricia Paul Peter Philip Rachel Ralph Raymond Rebecca Richard
Robert Roger Roland Rose Rupert Ruth Samuel Sarah Sidney Simon Sophia Stanley Stella Stephen Susan
Sylvia Teresa Theodore Thomas Timothy Ursula Valerie Vera Victor Vincent Walter Wilfred William
""".split()
TEST_NAMES = """
Martha Oswald Priscilla Humphrey Naomi Quentin Winifred Ambrose Cordelia Desmond Phoebe Rodney
Tabitha Leopold Georgina Barnaby Yvonne Percival Henrietta Clement Daphne Magnus Olive Sebastian
Rosalind Tristan Viola Edwin Imogen Patrick Beryl Howard Celia Martin Ivy Warren Adelaide Stuart
Marjorie Duncan
""".split()


@dataclass
class Case:
    """A slice of the text, the facts planted in it and the name asked for at its end.

    `start` and `length` are bytes of the text; each fact is [at, name, value], where `at` counts
    bytes from `start` in the bare slice; facts are in order of `at`. `distance` is what separates
    the end of the asked fact from the question, in bytes (= tokens) of the finished prompt.
    """

    start: int
    length: int
    facts: list
    ask: str
    value: str
    distance: int

    def prompt(self, text: bytes) -> bytes:
        """The bytes to give to the model: slice with facts, then the question."""
        out, done = [], self.start
        for at, name, value in self.facts:
            out += [text[done : self.start + at], FACT.format(name=name, value=value).encode()]
            done = self.start + at
        out += [text[done : self.start + self.length], QUESTION.format(name=self.ask).encode()]
        return b"".join(out)

    def answer(self) -> bytes:
        """The bytes that a greedy continuation must begin with."""
        return ANSWER.format(value=self.value).encode()


def random_value(rng: random.Random) -> str:
    """A number without a leading zero, so that it could not be read as anything else."""
    return str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))


def make_case(text: bytes, ends: list[int], rng: random.Random, count: int,
              near: int, far: int) -> Case | None:
    """One case of `count` facts at a distance in [near, far), or None where the draw fails."""
    goal, lead = rng.randrange(near, far), rng.randrange(500)
    first = rng.randrange(len(ends))
    start = ends[first] + 1
    places = [e - start for e in ends[first + 1 : first + 120]]
    asked_at = next((p for p in places if p >= lead), None)
    names = rng.sample(TEST_NAMES, count)
    values = [random_value(rng) for _ in names]
    facts = [[asked_at, names[0], values[0]]]
    length = next((p for p in places if asked_at is not None and p >= asked_at + goal), None)
    if length is None:
        return None
    free = [p for p in places if p < length and p != asked_at]
    if len(free) < count - 1:
        return None
    facts += [[at, n, v] for at, n, v in zip(rng.sample(free, count - 1), names[1:], values[1:])]
    planted = sum(len(FACT.format(name=n, value=v)) for at, n, v in facts if at > asked_at)
    surplus = planted + length - asked_at - goal  # take back what the other facts added
    while surplus > 0 and (shorter := [p for p in free if p < length]):
        if any(at >= shorter[-1] for at, _, _ in facts):
            break
        surplus -= length - shorter[-1]
        length = shorter[-1]
    distance = planted + length - asked_at
    if not near <= distance < far:
        return None
    return Case(start, length, sorted(facts), names[0], values[0], distance)


def make_cases(text: bytes, number: int, seed: int, near: int, far: int) -> list[Case]:
    """`number` cases with 1 to 8 facts each, the same for the same seed."""
    rng = random.Random(seed)
    ends = [m.start() for m in SENTENCE_END.finditer(text)]
    cases: list[Case] = []
    while len(cases) < number:
        case = make_case(text, ends, rng, 1 + len(cases) % 8, near, far)
        if case:
            cases.append(case)
    return cases


def write_cases(cases: list[Case], path: Path) -> None:
    """One JSON object a line, without spaces."""
    rows = (json.dumps(vars(c), separators=(",", ":")) for c in cases)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def read_cases(path: Path) -> list[Case]:
    """What write_cases wrote."""
    return [Case(**json.loads(row)) for row in path.read_text(encoding="utf-8").splitlines()]


def answer_of(model, prompt: bytes, length: int) -> bytes:
    """Greedy continuation by transformers; a token is a byte, so no tokenizer is needed."""
    import torch

    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                         min_new_tokens=length, max_new_tokens=length)
    return bytes(min(i, 255) for i in out[0, ids.shape[1] :].tolist())


def evaluate(folder: Path, cases: list[Case], text: bytes) -> None:
    """Print the share of exact answers: of all, by distance and by number of facts."""
    import torch
    from transformers import AutoModelForCausalLM

    # the shipped bfloat16 weights, computed with in float32, which most CPUs do far faster
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    groups = defaultdict(list)
    for number, case in enumerate(cases, 1):
        answer = case.answer()
        right = answer_of(model, case.prompt(text), len(answer)) == answer
        low = case.distance // 100 * 100
        for group in (("all", ""), ("distance", f"{low}..{low + 99}"), ("facts", len(case.facts))):
            groups[group].append(right)
        if number % 100 == 0:
            done = groups["all", ""]
            print(f"{sum(done)} of {len(done)} right", flush=True)
    for (what, value), rights in sorted(groups.items(), key=lambda g: (g[0][0], str(g[0][1]))):
        share = 100 * sum(rights) / len(rights)
        print(f"{what} {value}: {sum(rights)} of {len(rights)} = {share:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("make", "evaluate"),
                        help="write the cases file, or answer its cases with the model")
    parser.add_argument("--model", type=Path, default=HERE, help="folder of the model")
    parser.add_argument("--cases", type=Path, default=HERE / "cases.jsonl")
    parser.add_argument("--text", type=Path, default=HERE / "heldout.txt")
    parser.add_argument("--number", type=int, default=1000,
                        help="cases to make, or to evaluate from the beginning of the file")
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--near", type=int, default=2000, help="least distance in bytes")
    parser.add_argument("--far", type=int, default=2600, help="distances stay below this")
    args = parser.parse_args()
    text = args.text.read_bytes()
    if args.what == "make":
        write_cases(make_cases(text, args.number, args.seed, args.near, args.far), args.cases)
    else:
        evaluate(args.model, read_cases(args.cases)[: args.number], text)


if __name__ == "__main__":
    main()
