"""scripts/mutants must find faults where there is code, and count what suites say of them."""

import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / "scripts" / "mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
    sys.modules["mutants"] = module  # dataclasses look there
    loader.exec_module(module)
    return module


mutants = load()

CODE = """\
#include <vector>  // not 1 < 2
// Nor here: if (a == b) count += 1;
int Count(int a, int b) {
  const char* text = "a < b + 1";
  /* a == b
     1 + 1 */
  if (a <= b && !Known(a, b)) {
    Add(a, b);
    total_ += a + b;
    ++calls_;
  }
  Count(const Count&) = delete;
  LogDebug("{} < {}", a + 7, Add(b, a));
  QUIRE_CHECK(a < 9);
  list.reserve(8);
  const char quote = '"'; const uint64_t big = 200'000; const std::vector<int> many = {};
  return Fail(fmt::format("{}", a + 5), b == 3);
}
"""


def effects(kind):
    """What each fault of a kind makes of its line."""
    found = []
    for fault in mutants.faults_of("x.cc", CODE):
        if fault.kind != kind:
            continue
        text = CODE[:fault.begin] + fault.new + CODE[fault.end:]
        found.append(text.splitlines()[fault.line - 1].strip())
    return found


class Faults(unittest.TestCase):
    def test_boundaries(self):
        self.assertEqual(effects("boundary"), ["if (a < b && !Known(a, b)) {"])

    def test_conditions(self):
        self.assertEqual(effects("condition"), [
            "if (!(a <= b && !Known(a, b))) {", "if (a <= b || !Known(a, b)) {",
            'return Fail(fmt::format("{}", a + 5), b != 3);'])

    def test_signs(self):
        self.assertEqual(effects("sign"), ["total_ += a - b;"])

    def test_dropped_statements(self):
        dropped = [fault.old for fault in mutants.faults_of("x.cc", CODE)
                   if fault.kind == "dropped"]
        self.assertEqual(dropped, ["Add(a, b);", "total_ += a + b;", "++calls_;"])

    def test_swapped_arguments(self):
        self.assertEqual(effects("swapped"), ["if (a <= b && !Known(b, a)) {", "Add(b, a);"])

    def test_constants(self):
        self.assertEqual(effects("constant"),
                         ['return Fail(fmt::format("{}", a + 5), b == 4);'])

    def test_blanks_keep_every_place(self):
        code = mutants.code_only(CODE)
        self.assertEqual(len(code), len(CODE))
        self.assertEqual(code.count("\n"), CODE.count("\n"))

    def test_every_layer_has_some_and_a_seed_gives_the_same(self):
        for folder in ("base", "pool", "quota", "registry", "embed", "cache"):
            with self.subTest(folder):
                first = list(itertools.islice(mutants.sample(ROOT, folder, 7), 20))
                self.assertEqual(len(first), 20)
                self.assertEqual(first, list(itertools.islice(mutants.sample(ROOT, folder, 7), 20)))
                self.assertNotEqual(first,
                                    list(itertools.islice(mutants.sample(ROOT, folder, 8), 20)))
                self.assertGreater(len({fault.kind for fault in first}), 3)
                self.assertFalse([fault for fault in first if "_test" in fault.path])

    def test_what_only_tests_include_is_no_code(self):
        paths = {path for path in (ROOT / "src").rglob("*.h") if mutants.is_code(path)}
        included = {}
        for path in (ROOT / "src").rglob("*.*"):
            if path.suffix in (".cc", ".h"):
                for name in re.findall(r'#include "([^"]+)"', path.read_text()):
                    included.setdefault(ROOT / "src" / name, []).append(path)
        by_tests_alone = [path.name for path in paths if path in included
                          and not any(mutants.is_code(by) for by in included[path])]
        self.assertEqual(by_tests_alone, [])

    def test_a_folder_inside_is_sampled_once(self):
        def paths(folder):
            return {fault.path for fault in mutants.sample(ROOT, folder, 1)}

        self.assertIn("src/codec/formats/q25-inl.h", paths("codec"))
        self.assertIn("src/serve/http/answer.cc", paths("serve/http"))
        self.assertFalse([path for path in paths("serve") if "/http/" in path or "/c/" in path],
                         "a library of its own")


class Suites(unittest.TestCase):
    def test_the_own_one_first_then_all_that_stand_on_it(self):
        suites = mutants.suites_of(ROOT, "pool")
        self.assertEqual(suites[:3], ["pool_test", "suite_test", "cache_test"])
        for name in ("registry_test", "serve_test", "quire_app_test"):
            self.assertIn(name, suites)
        for name in ("index_test", "golden_test"):  # golden_test stands on text alone
            self.assertNotIn(name, suites)
        self.assertIn("golden_test", mutants.suites_of(ROOT, "text"))
        self.assertEqual(mutants.suites_of(ROOT, "evict")[0], "evict_test")
        self.assertNotIn("cache_test", mutants.suites_of(ROOT, "embed"))

    def test_a_library_inside_a_layer_stands_on_it(self):
        self.assertEqual(mutants.suites_of(ROOT, "serve/http"), ["http_test", "quire_app_test"])
        for name in ("serve_test", "http_test", "engine_c_test"):
            self.assertIn(name, mutants.suites_of(ROOT, "serve"))


class FakeWorkshop:
    """near_test notices a dropped call, far_test a condition; a constant does not compile."""

    seconds = 1

    def __init__(self, path):
        self.path = path
        self.built = []

    def has(self, suite):
        return suite in ("pool_test", "cache_test")

    def build(self, suite):
        self.built.append(suite)
        return "int limit = 3;" in self.path.read_text()

    def passes(self, suite):
        text = self.path.read_text()
        return "Drop(x);" in text if suite == "pool_test" else "a == x" in text


class Judging(unittest.TestCase):
    TEXT = ("int F(int x) {\n  int limit = 3;\n  Drop(x);\n  if (a == x) return limit;\n"
            "  return limit + x;\n}\n")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "src" / "pool").mkdir(parents=True)
        (self.root / "src" / "LAYERS").write_text("pool:\ncache: pool\n")
        self.path = self.root / "src" / "pool" / "f.cc"
        self.path.write_text(self.TEXT)
        self.workshop = FakeWorkshop(self.path)

    def run_folder(self, count=100, nearest=None):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            result = mutants.run_folder(self.root, "pool", mutants.Judge(self.root, self.workshop),
                                        count, seed=1, nearest=nearest)
        return result, said.getvalue()

    def test_counts_what_is_noticed_and_names_what_is_not(self):
        result, said = self.run_folder()
        self.assertEqual((result["judged"], result["noticed"]), (3, 2))
        self.assertEqual([fault["kind"] for fault in result["survivors"]], ["sign"])
        self.assertIn("src/pool/f.cc:5: sign: + -> -: SURVIVED", said)
        self.assertIn("dropped: Drop(x); -> ;: noticed by pool_test", said)
        self.assertIn("condition: == -> !=: noticed by cache_test", said)
        self.assertEqual(self.path.read_text(), self.TEXT, "every fault is taken back")
        self.assertEqual(mutants.table({"pool": result}).split(),
                         "folder faults noticed score pool 3 2 67 % all 3 2 67 %".split())

    def test_stops_at_the_count(self):
        self.assertEqual(self.run_folder(count=1)[0]["judged"], 1)

    def test_only_the_nearest_suites_when_asked(self):
        result, _ = self.run_folder(nearest=1)
        self.assertEqual((result["judged"], result["noticed"]), (3, 1))
        self.assertNotIn("cache_test", self.workshop.built)

    def test_a_suite_that_fails_without_a_fault_proves_nothing(self):
        self.path.write_text(self.TEXT.replace("Drop(x);", "Drop(y);"))
        with self.assertRaisesRegex(SystemExit, "without a fault pool_test does not pass"):
            self.run_folder()


class Running(unittest.TestCase):
    """A suite notices when it fails, crashes, hangs or eats memory."""

    def passes(self, script, seconds=20):
        with tempfile.TemporaryDirectory() as folder:
            workshop = object.__new__(mutants.Workshop)
            workshop.build_folder, workshop.seconds = pathlib.Path(folder), seconds
            suite = pathlib.Path(folder) / "bin" / "x_test"
            suite.parent.mkdir()
            suite.write_text(f"#!{sys.executable}\n{script}\n")
            suite.chmod(0o755)
            with unittest.mock.patch.object(mutants, "COPY", pathlib.Path(folder)):
                return workshop.passes("x_test")

    def test_only_a_clean_end_passes(self):
        self.assertTrue(self.passes("print('good')"))
        self.assertFalse(self.passes("raise SystemExit(1)"))
        self.assertFalse(self.passes("import os; os.abort()"))
        self.assertFalse(self.passes("import time; time.sleep(60)", seconds=0.5))

    def test_memory_is_limited(self):
        eats = "import time; held = bytearray(b'x') * (200 << 20); time.sleep(20)"
        with unittest.mock.patch.object(mutants, "SUITE_BYTES_MAX", 100 << 20):
            self.assertFalse(self.passes(eats))
        self.assertTrue(self.passes(eats.replace("20)", "0)")))


if __name__ == "__main__":
    unittest.main()
