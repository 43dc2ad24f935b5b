"""What README.md and docs/*.md cite is there; what docs/spec.md does not call open has a test; the
entries of docs/decisions.md are short and numbered, superseded ones in docs/lab beside them."""

import pathlib
import re
import shutil
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("apps", "bench", "cmake", "docs", "examples", "fuzz", "include", "models", "scripts",
           "src", "tests")
# A path from the root, in backticks or not; may hold `*`.
PATH = re.compile(rf"(?<![\w./~$-])(?:{'|'.join(FOLDERS)})/[\w.*/-]*[\w*/]")
# A file of code by its name alone, in backticks.
NAME = re.compile(r"`([\w*-]+(?:-inl)?\.(?:h|c|cc|cu|py))`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
DECISION = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
DECISIONS = "docs/decisions.md"
SUPERSEDED = "docs/lab/decisions-superseded.md"
SENTENCES_MAX = 6  # of a decision: its title and five more
ROW = re.compile(r"^\|(.+)\|\s*$")


def documents(root):
    return [path for path in (root / "README.md", *sorted(root.glob("docs/*.md"))) if path.exists()]


def cited_paths(line):
    return [match.group(0) for match in PATH.finditer(line)]


def exists(root, path):
    return (root / path).exists() or ("*" in path and any(root.glob(path)))


def citation_violations(root):
    names = {path.name for folder in FOLDERS for path in (root / folder).rglob("*")}
    for document in documents(root):
        where = document.relative_to(root)
        for number, line in enumerate(document.read_text().splitlines(), 1):
            for path in cited_paths(line):
                if not exists(root, path):
                    yield f"{where}:{number}: there is no {path}"
            for name in NAME.findall(line):
                if not any(pathlib.PurePath(known).match(name) for known in names):
                    yield f"{where}:{number}: there is no file {name}"
            for link in LINK.findall(line):
                if "://" not in link and not (document.parent / link).exists():
                    yield f"{where}:{number}: the link {link} leads nowhere"


def is_test(path):
    """Whether a cited path is a suite that fails when the promise is broken."""
    return bool(re.search(r"_test\.|/test_\w+\.py$|^tests/hf/\w+\.py$", path))


def spec_rows(root):
    """Yields (line number, promise, proof) of each row below the tables' heads."""
    for number, line in enumerate((root / "docs" / "spec.md").read_text().splitlines(), 1):
        row = ROW.match(line)
        cells = [cell.strip() for cell in row.group(1).split("|")] if row else []
        if len(cells) >= 2 and cells[-1] != "proof" and not cells[0].startswith("---"):
            yield number, cells[0], cells[-1]


def spec_violations(root):
    for number, promise, proof in spec_rows(root):
        if proof == "open":
            continue
        if not any(is_test(path) and exists(root, path) for path in cited_paths(proof)):
            yield f"docs/spec.md:{number}: {promise} is not open, but no test is cited that exists"


def sentences(text):
    """How many sentences there are, what stands in brackets left out."""
    for _ in range(2):
        text = re.sub(r"\([^()]*\)", "", text)
    return len(re.findall(r"[.?!]\**(?=\s|$)", text))


def decisions(root, path):
    return [(int(match[1]), match[2]) for match in DECISION.finditer((root / path).read_text())]


def decision_violations(root):
    """Each number is in one of two files, in ascending order, with none left out over both."""
    superseded = {number for number, _ in decisions(root, SUPERSEDED)}
    last = 0
    for number, text in decisions(root, DECISIONS):
        gap = set(range(last + 1, number)) - superseded
        if gap or number <= last or number in superseded:
            yield f"{DECISIONS}: decision {number} follows {last}"
        last = number
        if (count := sentences(text)) > SENTENCES_MAX:
            yield f"{DECISIONS}: decision {number} has {count} sentences, at most {SENTENCES_MAX}"


def violations(root):
    return [*citation_violations(root), *spec_violations(root), *decision_violations(root)]


class Documents(unittest.TestCase):
    def test_this_tree_keeps_the_rules(self):
        found = violations(ROOT)
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_the_check_reads_something(self):
        self.assertGreater(len(documents(ROOT)), 8)
        rows = list(spec_rows(ROOT))
        self.assertGreater(len(rows), 40)
        lines = (ROOT / "docs" / "spec.md").read_text().splitlines()
        self.assertGreater(sum(len(cited_paths(line)) for line in lines), 80)
        self.assertGreater(len(decisions(ROOT, DECISIONS)), 50)
        self.assertGreater(len(decisions(ROOT, SUPERSEDED)), 1)
        self.assertEqual(sentences("**Title.** One (not. this). Two: 1.5 ms, a.b. Three?"), 4)


class Planted(unittest.TestCase):
    """The check must fail: each test plants one violation in a copy and looks for its message."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "docs", self.root / "docs")
        shutil.copytree(ROOT / "tests" / "docs", self.root / "tests" / "docs")
        self.before = set(violations(self.root))

    def assert_planting_fails(self, text, message, path="docs/planted.md"):
        file = self.root / path
        file.write_text(file.read_text() + text if file.exists() else text)
        new = set(violations(self.root)) - self.before
        self.assertTrue(any(message in line for line in new), f"{message!r} not in {sorted(new)}")

    def test_a_path_that_is_gone(self):
        self.assert_planting_fails("See `src/cache/gone_test.cc`.\n",
                                   "docs/planted.md:1: there is no src/cache/gone_test.cc")

    def test_a_path_in_plain_text_at_the_end_of_a_sentence(self):
        self.assert_planting_fails("\nMore in docs/gone.md.\n",
                                   "docs/planted.md:2: there is no docs/gone.md")

    def test_a_pattern_that_nothing_matches(self):
        self.assert_planting_fails("`tests/docs/gone*_test.cc`",
                                   "there is no tests/docs/gone*_test.cc")

    def test_a_name_without_a_folder(self):
        self.assert_planting_fails("`gone_test.cc` shows it", "there is no file gone_test.cc")

    def test_a_link(self):
        self.assert_planting_fails("[this](../tests/gone.md#part)",
                                   "the link ../tests/gone.md leads nowhere")

    def test_the_front_page_too(self):
        self.assert_planting_fails("`docs/gone.md`", "README.md:1: there is no docs/gone.md",
                                   "README.md")

    def test_what_is_there_is_no_violation(self):
        (self.root / "docs/planted.md").write_text(
            "`tests/docs/test_docs.py`, `tests/docs/*.py`, `test_docs.py`, docs/spec.md and "
            "[a link](spec.md#words), [another](https://example.org/src/gone.cc)\n")
        self.assertEqual(set(violations(self.root)), self.before)

    def test_a_promise_without_a_test(self):
        for proof in ("`docs/spec.md`", "`tests/docs`", "`src/cache/gone_test.cc`", "`make x`", ""):
            with self.subTest(proof):
                self.assert_planting_fails(f"\n| X9 | a promise | {proof} |\n",
                                           "X9 is not open, but no test", "docs/spec.md")

    def test_a_long_decision_and_a_missing_one(self):
        last = decisions(self.root, DECISIONS)[-1][0]
        text = "**What.** Why. And. So. Then. Thus. More.\n"
        self.assert_planting_fails(f"{last + 1}. {text}", f"decision {last + 1} has 7 sentences",
                                   DECISIONS)
        self.assert_planting_fails(f"{last + 3}. **What.** Why.\n",
                                   f"decision {last + 3} follows {last + 1}", DECISIONS)

    def test_a_decision_that_is_superseded(self):
        last = decisions(self.root, DECISIONS)[-1][0]
        with open(self.root / SUPERSEDED, "a") as file:
            file.write(f"{last + 1}. **What.** Why.\n")
        with open(self.root / DECISIONS, "a") as file:
            file.write(f"{last + 2}. **What.** Why.\n")
        self.assertEqual(set(violations(self.root)), self.before)
        self.assert_planting_fails(f"{last + 2}. **What.** Why.\n",
                                   f"decision {last + 2} follows {last + 2}", DECISIONS)
        self.assert_planting_fails(f"{last + 2}. **What.** Why.\n",
                                   f"decision {last + 2} follows {last}", SUPERSEDED)

    def test_an_open_promise_needs_none(self):
        file = self.root / "docs/spec.md"
        file.write_text(file.read_text() + "\n| X9 | a promise | open |\n"
                        "| X8 | another | `tests/docs/test_docs.py` |\n")
        self.assertEqual(set(violations(self.root)), self.before)


if __name__ == "__main__":
    unittest.main()
