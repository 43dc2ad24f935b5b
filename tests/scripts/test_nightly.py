"""scripts/nightly must run every step, whatever became of the others, and end with one line."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKE_MAKE = """#!/bin/sh
step=$2
echo "$step $FLAGS" >> ran
case $step in
  broken) echo why; exit 2;;
  mutants) printf 'folder  faults  noticed  score\\npool  4  3  75 %%\\nall  10  9  90 %%\\n';;
esac
"""


class Nightly(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "scripts").mkdir()
        (self.root / "bin").mkdir()
        shutil.copy(ROOT / "scripts" / "nightly", self.root / "scripts")
        make = self.root / "bin" / "make"
        make.write_text(FAKE_MAKE)
        make.chmod(0o755)

    def nightly(self, *steps, **environment):
        environment = dict(os.environ, PATH=f"{self.root / 'bin'}:{os.environ['PATH']}", **environment)
        environment.setdefault("FLAGS", "")
        done = subprocess.run([self.root / "scripts" / "nightly", *steps], cwd="/", env=environment,
                              capture_output=True, text=True)
        ran = (self.root / "ran").read_text().splitlines()
        return done.returncode, done.stdout.splitlines(), ran

    def test_all_steps_with_a_fresh_seed(self):
        status, lines, ran = self.nightly()
        self.assertEqual(status, 0)
        self.assertEqual([line.split()[0] for line in ran],
                         ["thorough", "asan", "tsan", "stress", "serve-load", "fuzz-smoke", "sim", "many-tenants", "turns",
                          "long-context", "tidy", "mutants", "wheel", "test-adapters", "test-deb", "docs"])
        self.assertRegex(ran[-5], r"^mutants --seed 20\d{6}$")
        self.assertEqual(lines[-1], "nightly: thorough ok, asan ok, tsan ok, stress ok, serve-load ok, "
                                    "fuzz-smoke ok, sim ok, many-tenants ok, turns ok, long-context ok, tidy ok, mutants 9 of 10, wheel ok, "
                                    "test-adapters ok, test-deb ok, "
                                    "docs ok: 16 of 16 passed")

    def test_a_step_that_fails_does_not_stop_the_rest(self):
        status, lines, ran = self.nightly("broken", "mutants", FLAGS="--folder pool")
        self.assertEqual(status, 1)
        self.assertEqual(ran, ["broken --folder pool", "mutants --folder pool"])
        self.assertEqual(lines[-1], "nightly: broken FAILED, mutants 9 of 10: 1 of 2 passed")
        self.assertEqual((self.root / "build/nightly/broken.log").read_text(), "why\n")


if __name__ == "__main__":
    unittest.main()
