"""scripts/first-contact must leave a report whatever its steps do: with programs that only pretend.

tests/e2e/test_first_contact.py runs the real ones.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUIRE = """#!/bin/bash
case "$1 $*" in
  --version*|info*) echo '{"version":"0"}';;
  generate*int4*cuda*|generate*cuda*int4*) echo '{"logits_digest":"bad0"}';;
  generate*) echo '{"logits_digest":"900d"}';;
  bench*cascade*) echo 'a "quoted" \\ word' >&2; exit 4;;
  bench*) echo '{"rows":[]}';;
esac
"""
TESTS = """#!/bin/bash
case "$*" in
  *list_tests*) echo 'Running main() from gtest_main.cc'; printf 'Good.\n  Test\nCrashes.\n  Test\nMmaStaging.\n  Test\n'; exit;;
  *Zeros*) [[ -n ${HANG-} ]] && sleep 60;;
  *Crashes*) echo "sync is ${QUIRE_CUDA_SYNC-0}" >&2; kill -SEGV $$;;
esac
if [[ $* == *MmaStaging* ]]; then
  echo '[  FAILED  ] MmaStaging.Some (3 ms)'; echo 'cuda: an error' >&2; exit 1
fi
echo '[       OK ] Good.Test (1 ms)'
"""


class FirstContact(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bin").mkdir()
        for name, text in (("quire", QUIRE), ("cuda_kernels_test", TESTS)):
            program = self.root / "bin" / name
            program.write_text(text)
            program.chmod(0o755)
        shutil.copy(ROOT / "scripts" / "first-contact", self.root)

    def start(self, *arguments, **environment):
        self.out = self.root / "out"
        return subprocess.Popen([self.root / "first-contact", "--output", self.out, *arguments], cwd="/",
                                env=dict(os.environ, PATH="/usr/bin:/bin", **environment),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def report(self):
        report = json.loads((self.out / "report.json").read_text())
        return report, {step["step"]: step for step in report["steps"]}

    def test_what_fails_is_recorded_and_the_rest_goes_on(self):
        run = self.start("--device", "cuda:1")
        said = run.communicate(timeout=120)[0].decode()
        self.assertEqual(run.returncode, 1, said)
        report, steps = self.report()
        self.assertTrue(report["finished"])
        self.assertEqual(report["device"], "cuda:1")
        self.assertEqual(steps["suite/Good"]["result"], {"passed": 1, "skipped": 0, "failed": []})
        self.assertEqual(steps["mma16/staging"]["status"], "failed")
        self.assertEqual(steps["mma16/staging"]["result"]["failed"], ["MmaStaging.Some"])
        self.assertIn("cuda: an error", steps["mma16/staging"]["result"]["ends"]["stderr"])
        self.assertNotIn("suite/Running", steps)
        self.assertIn("/", steps["environment/machine"]["result"])
        self.assertEqual(steps["suite/Crashes"]["status"], "failed")
        self.assertIn("sync is 1", steps["suite/Crashes"]["result"]["one_launch_at_a_time"]["stderr"])
        self.assertEqual(steps["suite/cuda_runtime_test"]["status"], "missing")
        self.assertEqual(steps["sanitizer/memcheck"]["status"], "missing")
        self.assertEqual(steps["ncu/RunMmaProduct"]["status"], "missing")
        self.assertEqual(steps["digest/int8"]["status"], "ok")
        self.assertEqual(steps["digest/int4"]["status"], "failed")
        self.assertEqual(steps["digest/int4"]["result"], {"cpu": "900d", "cuda:1": "bad0"})
        for codec in "f32 f16 bf16 fp8_e4m3 fp8_e5m2 int8 int4 nf4 fp4 q25".split():
            self.assertIn(f"digest/{codec}", steps)
        shapes = [name for name in steps if name.startswith("bench attention decode/bf16")]
        for part in ("4096/b1/g4", "4096/b32/g8", "32768/b1/g8", "32768/b32/g4", "cuda:1:plain"):
            self.assertTrue(any(part in name for name in shapes), part)
        cascade = next(step for name, step in steps.items() if name.startswith("bench cascade"))
        self.assertIn('a "quoted" \\ word', cascade["result"]["stderr"])
        self.assertEqual(report["counts"]["left_out"], 0)

    def test_what_hangs_is_ended_and_time_is_kept(self):
        begin = time.monotonic()
        run = self.start("--seconds", "20", HANG="1")
        run.communicate(timeout=120)
        self.assertLess(time.monotonic() - begin, 60)
        report, steps = self.report()
        self.assertTrue(report["finished"])
        self.assertEqual(steps["mma16/the instruction"]["status"], "timeout")
        self.assertEqual(steps["digest/int8"]["status"], "left_out")

    def test_a_cut_leaves_what_was_found_before(self):
        run = self.start(HANG="1")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if (self.root / "out" / "report.json").exists() and self.report()[1].get("environment/quire"):
                break
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        report, steps = self.report()
        self.assertFalse(report["finished"])
        self.assertEqual(steps["environment/quire"]["result"], {"version": "0"})


if __name__ == "__main__":
    unittest.main()
