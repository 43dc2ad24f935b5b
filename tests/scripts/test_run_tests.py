"""scripts/run-tests must count what happened, whatever a suite does."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def report(passed=0, failed=0, skipped=0):
    """A GoogleTest JSON report with so many tests of each kind."""
    tests = [{"name": f"Good{i}", "status": "RUN", "result": "COMPLETED"} for i in range(passed)]
    tests += [{"name": f"Bad{i}", "status": "RUN", "result": "COMPLETED",
               "failures": [{"failure": "no"}]} for i in range(failed)]
    tests += [{"name": f"Left{i}", "status": "RUN", "result": "SKIPPED"} for i in range(skipped)]
    return json.dumps({"testsuites": [{"name": "Fake", "testsuite": tests}]})


class RunTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "bin").mkdir()

    def suite(self, name, text, then="exit 0"):
        """An executable that takes --gtest_output=json:PATH, writes `text` there and ends."""
        path = self.build / "bin" / name
        path.write_text(f"#!/bin/sh\nout=${{1#--gtest_output=json:}}\n"
                        f"cat > \"$out\" <<'END'\n{text}\nEND\necho said by {name}\n{then}\n")
        path.chmod(0o755)

    def run_tests(self, *names):
        (self.build / "quire_tests.txt").write_text("\n".join(names))
        done = subprocess.run([sys.executable, ROOT / "scripts/run-tests", self.build, "--cpp-only"],
                              capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    def test_sums_over_suites(self):
        self.suite("a_test", report(passed=3))
        self.suite("b_test", report(passed=4))
        status, lines = self.run_tests("a_test", "b_test")
        self.assertEqual((status, lines[-1]), (0, "7 passed, 0 failed"))

    def test_failure_is_named_and_its_output_shown(self):
        self.suite("a_test", report(passed=3, failed=1, skipped=2), "exit 1")
        status, lines = self.run_tests("a_test")
        self.assertEqual((status, lines[-1]), (1, "3 passed, 1 failed, 2 skipped"))
        self.assertIn("FAILED  a_test: Fake.Bad0", lines)
        self.assertIn("SKIPPED a_test: Fake.Left1", lines)
        self.assertIn("said by a_test", lines)

    def test_crash_is_a_failure(self):
        self.suite("a_test", report(passed=1))
        self.suite("b_test", "", 'rm "$out"; kill -SEGV $$')
        status, lines = self.run_tests("a_test", "b_test")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))
        self.assertIn("FAILED  b_test: ended by SIGSEGV", lines)

    def test_crash_names_the_test_it_was_in(self):
        said = ("echo '[ RUN      ] Fake.First'; echo '[       OK ] Fake.First (0 ms)'; "
                "echo '[ RUN      ] Fake.Second'; echo wrong; ")
        self.suite("a_test", "", f'rm "$out"; {said} kill -SEGV $$')
        lines = self.run_tests("a_test")[1]
        self.assertIn("FAILED  a_test: ended by SIGSEGV in Fake.Second", lines)
        self.assertIn("wrong", lines)
        self.assertNotIn("[ RUN      ] Fake.First", lines)

    def test_bad_exit_after_good_tests_is_a_failure(self):
        self.suite("a_test", report(passed=5), "exit 23")
        status, lines = self.run_tests("a_test")
        self.assertEqual((status, lines[-1]), (1, "5 passed, 1 failed"))
        self.assertIn("FAILED  a_test: ended with exit code 23", lines)

    def test_missing_executable_is_a_failure(self):
        self.suite("a_test", report(passed=1))
        status, lines = self.run_tests("a_test", "b_test")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_good_exit_without_a_report_is_a_failure(self):
        self.suite("a_test", report(passed=1), 'rm "$out"')
        self.assertEqual(self.run_tests("a_test")[0], 1)

    def test_nothing_passed_is_a_failure(self):
        self.assertEqual(self.run_tests()[0], 1)
        self.suite("a_test", report(skipped=2))
        status, lines = self.run_tests("a_test")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 0 failed, 2 skipped"))


if __name__ == "__main__":
    unittest.main()
