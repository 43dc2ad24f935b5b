"""Which layer may include which (src/LAYERS), the shape of files, and words: the rules that a compiler
does not check."""

import functools
import pathlib
import re
import shutil
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = (".h", ".c", ".cc", ".cu")
FOLDERS = ("include", "src", "apps", "bench", "examples")
LINES_MAX = 700
COLUMNS_MAX = 100
PUBLIC_HEADERS_MAX = 17
# Layers that use the cache as everyone does: only their tests include more of it.
PUBLIC_CACHE_ONLY = {"registry"}
# Words that stood for things with a name in the field, and that name (docs/glossary.md).
GONE_WORDS = {
    "excess": "bias", "halves": "f16 or nibbles", "hollow": "a block without bytes",
    "leaving": "pending write-back", "mass": "importance",
    "part": "layer group, bucket, piece, ...", "parts": "the same", "standing": "block state",
}
# Words that hide what acts, or that the glossary replaced, in comments and documents.
VAGUE_WORD = re.compile(r"\b(nobody|anybody|somebody|everybody|whoever|who|hollow)\b", re.IGNORECASE)
# What is checked for them.
PLAIN = (
    "apps", "bench", "docs", "examples", "fuzz", "include", "python", "sim", "src", "tests", "HACKING.md", "README.md",
)
AS_IT_WAS = ("docs/decisions.md", "docs/lab")  # what was decided and tried, in the words of that day
# Names of the public interface that are older than the glossary: they stay.
PUBLIC_NAMES = ("hollow_blocks",)
PUBLIC_NAME = re.compile(rf"\b(?:{'|'.join(PUBLIC_NAMES)})\b")
IDENTIFIER_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
# Libraries whose headers cost seconds wherever they are read, and the files that may read them.
DEAR_HEADERS = {
    "CLI/": {"apps/quire/flags.cc"},
    "boost/beast/": {"apps/quire/load.cc", "src/serve/http/connection.cc", "src/serve/http/head.h"},
}
# Comments and string literals.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# Fenced blocks, and code inside a line.
DOCUMENTS_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def read_layers(root):
    """The table as {layer: set of layers it may include}, in the file's order."""
    layers = {}
    for line in (root / "src" / "LAYERS").read_text().splitlines():
        if line and not line.startswith("#"):
            name, deps = line.split(":")
            layers[name] = set(deps.split())
    return layers


def code_files(folder):
    return sorted(path for path in folder.rglob("*") if path.suffix in CODE)


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def is_test(path):
    return path.stem.endswith("_test")


def table_violations(root):
    known = set()
    for layer, deps in read_layers(root).items():
        for dep in sorted(deps - known):
            yield f"src/LAYERS: {layer} uses {dep}, which does not stand above it"
        known.add(layer)


def layer_violations(root):
    layers = read_layers(root)
    for path in code_files(root / "src"):
        where = path.relative_to(root)
        layer = where.parts[1]
        if layer not in layers:
            yield f"{where}: {layer} is not in src/LAYERS"
            continue
        for number, name in includes(path):
            first = name.split("/")[0]
            if ".." in name.split("/"):
                yield f"{where}:{number}: includes {name}: no way up"
            elif first in layers:
                if first != layer and first not in layers[layer]:
                    yield f"{where}:{number}: {layer} may not include {name}"
                elif layer in PUBLIC_CACHE_ONLY and first == "cache" and not is_test(path):
                    yield f"{where}:{number}: {layer} uses quire/cache.h, not {name}"
            elif first in ("apps", "examples", "bench", "sim", "fuzz"):
                yield f"{where}:{number}: a layer may not include {name}"
            elif first == "tests" and not is_test(path):
                yield f"{where}:{number}: only tests may include {name}"
            elif (path.parent / name).exists():
                yield f"{where}:{number}: write {layer}/{name}, from src/"


def public_violations(root):
    headers = code_files(root / "include")
    if len(headers) > PUBLIC_HEADERS_MAX:
        yield f"include/quire: {len(headers)} headers, at most {PUBLIC_HEADERS_MAX}"
    for path in headers:
        where = path.relative_to(root)
        if where.parts[:2] != ("include", "quire") or path.suffix != ".h" or len(where.parts) != 3:
            yield f"{where}: only include/quire/*.h is public"
        for number, name in includes(path):
            # The C interface needs C's own headers for its types.
            if not re.fullmatch(r"[a-z_]+|std(def|int)\.h|quire/[a-z_]+\.h", name):
                yield f"{where}:{number}: a public header may not include {name}"


def guard_name(where):
    """QUIRE_BASE_CHECK_H_ for src/base/check.h, QUIRE_ERROR_H_ for include/quire/error.h, and
    QUIRE_APPS_COMMAND_H_ for apps/quire/command.h."""
    parts = ["quire"] + [part for part in where.parts if part not in ("include", "src", "quire")]
    return re.sub(r"[^A-Za-z0-9]", "_", "/".join(parts)).upper() + "_"


def shape_violations(root):
    for folder in FOLDERS:
        for path in code_files(root / folder):
            where = path.relative_to(root)
            text = path.read_text()
            lines = text.splitlines()
            if folder == "src" and len(lines) > LINES_MAX:
                yield f"{where}: {len(lines)} lines, at most {LINES_MAX}"
            for number, line in enumerate(lines, 1):
                if len(line) > COLUMNS_MAX:
                    yield f"{where}:{number}: {len(line)} columns, at most {COLUMNS_MAX}"
            if path.suffix == ".h":
                guard = guard_name(where)
                once = f"#ifndef {guard}\n#define {guard}\n"
                # Highway's -inl.h files are read once per target.
                per_target = f"#if defined({guard}) == defined(HWY_TARGET_TOGGLE)"
                if once not in text and per_target not in text:
                    yield f"{where}: lacks the header guard {guard}"


@functools.cache
def gone_words_in(text):
    """(line, word) of every word in `text` that is gone, comments and strings left out."""
    code = NOT_CODE.sub(lambda cut: "\n" * cut[0].count("\n"), text)
    lines = PUBLIC_NAME.sub("", code).splitlines()
    return [(number, word) for number, line in enumerate(lines, 1)
            for word in sorted({word.lower() for word in IDENTIFIER_WORD.findall(line)})
            if word in GONE_WORDS]


def word_violations(root):
    """Identifiers and file names with a word that is gone. Tests are named by sentences."""
    for folder in FOLDERS:
        for path in code_files(root / folder):
            where = path.relative_to(root)
            if is_test(path):
                continue
            in_name = [(0, word) for _, word in gone_words_in(path.stem)]
            for number, word in in_name + gone_words_in(path.read_text()):
                yield f"{where}:{number}: '{word}' is called {GONE_WORDS[word]}"


@functools.cache
def vague_words_in(text, is_document):
    """(line, word) of the vague words in the comments of a program, or outside a document's code."""
    found = []
    if is_document:
        text = DOCUMENTS_CODE.sub(lambda cut: "\n" * cut[0].count("\n"), text)
        cuts = [(0, text)]
    else:
        cuts = [(cut.start(), cut[0]) for cut in NOT_CODE.finditer(text) if cut[0][0] == "/"]
    for begin, prose in cuts:
        for match in VAGUE_WORD.finditer(prose):
            found.append((text.count("\n", 0, begin + match.start()) + 1, match[0]))
    return found


def prose_violations(root):
    for name in PLAIN:
        for path in [root / name, *sorted((root / name).rglob("*"))]:
            where = path.relative_to(root)
            if path.suffix not in (*CODE, ".md") or str(where).startswith(AS_IT_WAS):
                continue
            if not path.is_file():
                continue
            for number, word in vague_words_in(path.read_text(), path.suffix == ".md"):
                yield f"{where}:{number}: '{word}': name what acts, in the glossary's words"


def public_name_violations(root):
    """A name that the public headers no longer have may not keep its exception."""
    text = "".join(path.read_text() for path in code_files(root / "include"))
    for name in PUBLIC_NAMES:
        if not re.search(rf"\b{name}\b", text):
            yield f"tests/layers: {name} is gone: take it out of PUBLIC_NAMES"


def dear_header_violations(root):
    for folder in FOLDERS:
        for path in code_files(root / folder):
            where = path.relative_to(root)
            for number, name in includes(path):
                for library, files in DEAR_HEADERS.items():
                    if name.startswith(library) and str(where) not in files and not is_test(path):
                        yield f"{where}:{number}: only {' and '.join(sorted(files))} may include {name}"


def violations(root):
    found = []
    for check in (table_violations, layer_violations, public_violations, shape_violations,
                  word_violations, prose_violations, public_name_violations,
                  dear_header_violations):
        found += check(root)
    return found


class Layers(unittest.TestCase):
    def test_this_tree_keeps_the_rules(self):
        found = violations(ROOT)
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_the_check_reads_something(self):
        self.assertIn("base", read_layers(ROOT))
        self.assertGreater(len(list(code_files(ROOT / "src" / "base"))), 10)
        self.assertTrue(list(includes(ROOT / "src" / "base" / "hash.cc")))


class Prose(unittest.TestCase):
    """The check of comments and documents, on a folder with nothing else."""

    def found(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return [line.split(": name")[0] for line in prose_violations(pathlib.Path(folder))]

    def test_vague_words_in_comments_and_documents(self):
        for path, text, message in (
                ("src/pool/a.cc", "int a;  // Whoever asks first.\n", "src/pool/a.cc:1: 'Whoever'"),
                ("src/pool/a_test.cc", 'auto a = "who";\n/* It is\n   nobody\'s. */\n',
                 "src/pool/a_test.cc:3: 'nobody'"),
                ("docs/cache.md", "```\nwho\n```\n`who` is a hollow block.\n",
                 "docs/cache.md:4: 'hollow'")):
            self.assertEqual(self.found(path, text), [message])

    def test_the_same_in_strings_and_code_and_where_it_is_not_checked(self):
        for path, text in (("src/pool/a.cc", 'int who; auto b = "// nobody"; int hollow_blocks;\n'),
                           ("docs/cache.md", "A `nobody`.\n```\nwho\n```\n"),
                           ("docs/lab/a.md", "// Whoever.\n"), ("models/a.md", "Who?\n")):
            self.assertEqual(self.found(path, text), [])

    def test_every_entry_of_the_list_exists(self):
        for name in (*PLAIN, *AS_IT_WAS):
            self.assertTrue((ROOT / name).exists(), name)


class Planted(unittest.TestCase):
    """The check must fail: each test plants one violation in a copy and looks for its message."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in FOLDERS:
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, self.root / name)
            else:
                (self.root / name).mkdir()
        self.before = set(violations(self.root))

    def assert_planting_fails(self, path, text, message):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        new = set(violations(self.root)) - self.before
        self.assertTrue(any(message in line for line in new), f"{message!r} not in {sorted(new)}")

    def test_lower_layer_includes_higher(self):
        self.assert_planting_fails("src/pool/planted.cc", '#include "cache/cache.h"\n',
                                   "src/pool/planted.cc:1: pool may not include cache/cache.h")

    def test_sibling_includes_sibling(self):
        self.assert_planting_fails("src/index/planted.h", "#  include <pool/pool.h>\n",
                                   "index may not include pool/pool.h")

    def test_layer_goes_around_the_public_cache(self):
        self.assert_planting_fails("src/registry/planted.cc", '#include "cache/core.h"\n',
                                   "registry uses quire/cache.h, not cache/core.h")

    def test_path_upwards(self):
        self.assert_planting_fails("src/pool/planted.cc", '#include "../cache/cache.h"\n',
                                   "no way up")

    def test_layer_includes_program(self):
        self.assert_planting_fails("src/serve/planted.cc", '#include "apps/quire/main.h"\n',
                                   "a layer may not include apps/quire/main.h")

    def test_code_includes_test_code(self):
        self.assert_planting_fails("src/pool/planted.cc", '#include "tests/suite/pool.h"\n',
                                   "only tests may include")

    def test_include_without_layer(self):
        self.assert_planting_fails("src/base/planted.cc", '#include "check.h"\n',
                                   "write base/check.h")

    def test_unknown_layer(self):
        self.assert_planting_fails("src/utils/planted.cc", "", "utils is not in src/LAYERS")

    def test_public_header_includes_library(self):
        self.assert_planting_fails("include/quire/error.h", "#include <fmt/core.h>\n",
                                   "a public header may not include fmt/core.h")

    def test_too_many_public_headers(self):
        for i in range(PUBLIC_HEADERS_MAX):
            (self.root / f"include/quire/planted{i}.h").write_text("")
        self.assert_planting_fails("include/quire/last.h", "", "headers, at most 17")

    def test_missing_guard(self):
        self.assert_planting_fails("src/base/planted.h", "#pragma once\n",
                                   "lacks the header guard QUIRE_BASE_PLANTED_H_")

    def test_long_file_and_line(self):
        self.assert_planting_fails("src/base/planted.cc", "\n" * 701, "701 lines, at most 700")
        self.assert_planting_fails("src/base/planted.cc", "/" * 101, "101 columns, at most 100")

    def test_words_that_are_gone(self):
        for name, text, message in (
                ("planted.cc", "int PartOf(int block);\n", "src/pool/planted.cc:1: 'part' is called"),
                ("planted.cc", "\n/* a\n*/ int hollow_count = 0;\n",
                 "src/pool/planted.cc:3: 'hollow' is called"),
                ("planted.cc", "constexpr int kKVMass = 1;\n", "'mass' is called importance"),
                ("halves.cc", "\n", "src/pool/halves.cc:0: 'halves' is called f16")):
            self.assert_planting_fails(f"src/pool/{name}", text, message)

    def test_a_header_that_costs_seconds(self):
        self.assert_planting_fails("apps/quire/planted.h", "#include <CLI/CLI.hpp>\n",
                                   "only apps/quire/flags.cc may include CLI/CLI.hpp")

    def test_words_in_comments_strings_and_tests_may_stay(self):
        for name, text in (("planted.cc", '// a part\nint apart; const char* x = "\\"parts";\n'),
                           ("planted_test.cc", "int part;\n"), ("partial.cc", "int partition;\n")):
            (self.root / "src/pool" / name).write_text(text)
        self.assertEqual(set(violations(self.root)), self.before)

    def test_public_names_stay(self):
        (self.root / "src/pool/planted.cc").write_text("int hollow_blocks;\n")
        self.assertEqual(set(violations(self.root)), self.before)
        self.assert_planting_fails("src/pool/planted.cc", "int hollow_blocks_total;\n",
                                   "'hollow' is called")

    def test_an_exception_that_nothing_needs(self):
        for path in code_files(self.root / "include"):
            path.write_text(path.read_text().replace("hollow_blocks", "empty_blocks"))
        new = set(violations(self.root)) - self.before
        self.assertTrue(any("hollow_blocks is gone" in line for line in new), new)

    def test_cycle_in_the_table(self):
        table = (self.root / "src/LAYERS").read_text()
        self.assert_planting_fails("src/LAYERS", table.replace("base:\n", "base: cache\n"),
                                   "base uses cache")


if __name__ == "__main__":
    unittest.main()
