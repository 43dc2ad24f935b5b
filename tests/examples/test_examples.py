"""The example that the installed library is not enough for (the others: tests/install)."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build" / "release"))


class Training(unittest.TestCase):
    def test_checkpoint_layers_halve_the_bytes_and_change_no_bit(self):
        done = subprocess.run([BUILD / "bin" / "example_training"], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        before, after = map(float, re.search(r"loss (\S+) to (\S+) in", done.stdout).groups())
        self.assertLess(after, 0.9 * before)
        every, half = map(int, re.findall(r"(\d+) bytes", done.stdout))
        self.assertEqual(every, 2 * half)
        self.assertIn("the same weights: yes", done.stdout)


if __name__ == "__main__":
    unittest.main()
