"""docs/benchmarks.md is what scripts/benchmarks makes from the records; figures keep their sense."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "bench"


def script(*arguments):
    return subprocess.run([sys.executable, ROOT / "scripts/benchmarks", *arguments],
                          capture_output=True, text=True)


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.records = pathlib.Path(folder.name)
        self.page = self.records / "page.md"
        (self.records / "intro.md").write_text("# Benchmarks\n")
        self.flags = ["--records", self.records, "--page", self.page]

    def keep(self, **changed):
        row = {"case": "decode/f16/32768/t1", "value": 188.0885, "unit": "ms/token",
               "better": "less", "floor": 160.868, "ratio": 0.85528, "median": 0.85,
               "pairs": 320, "slice": "1 row over 8192 tokens, 1 layer", **changed}
        machine = {"cpu_target": "avx3_dl", "last_level_cache_bytes": 33554432}
        if "instructions" in row:
            machine["counted_target"] = "avx2"
        measured = {"date": "2026-01-31", "commit": "abc1234", "load": 7.5, "pairs_min": 20,
                    "bench": "attention", "machine": machine, "rows": [row]}
        (self.records / "box.json").write_text(json.dumps(
            {"kind": "box", "cpu": "2 processors: a CPU", "benches": {"attention": measured}}))

    def test_the_committed_page_is_what_the_records_make(self):
        done = script("check")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_changed_figure_is_noticed(self):
        self.keep()
        self.assertEqual(script(*self.flags, "page").returncode, 0)
        self.assertEqual(script(*self.flags, "check").returncode, 0)
        self.page.write_text(self.page.read_text().replace("188.1", "18.1"))
        done = script(*self.flags, "check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("+| decode/f16/32768/t1 | 188.1 | 160.9 | ms/token | 0.855 | 0.850 |",
                      done.stdout)

    def test_what_a_device_measured_is_told_by_arithmetic(self):
        def step(device, flags, value):
            row = {"case": "decode/bf16/4096/b32/g4/sm_90", "value": value, "unit": "ms/layer",
                   "better": "less", "floor": 0.12, "ratio": 0.5, "median": 0.5, "pairs": 5}
            machine = {"cpu_target": "amx", "last_level_cache_bytes": 1 << 20}
            return {"step": f"bench attention decode/bf16/4096 --device {device}{flags}", "status": "ok",
                    "seconds": 1, "result": {"bench": "attention", "machine": machine, "rows": [row]}}
        said = {"commit": "abc1234", "date": "2026-03-01", "steps": [
            {"step": "environment/clocks", "status": "ok", "seconds": 0,
             "result": "name, driver_version, memory.total [MiB]\nA device, 1.2, 80 MiB"},
            step("cuda:0", " --arithmetic mma16", 0.25), step("cuda:0", "", 0.75),
            step("cuda:0:plain", " --arithmetic mma16", 0.5),
            {**step("cuda:0", "", 9.0), "status": "failed", "result": {}}]}
        file = self.records / "report.txt"
        file.write_text(json.dumps(said))
        done = script(*self.flags, "report", "box", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out, failed: bench attention", done.stderr)
        self.assertEqual(script(*self.flags, "page").returncode, 0)
        text = self.page.read_text()
        self.assertIn("A device, driver 1.2, 80 MiB.", text)
        self.assertIn("2026-03-01, commit abc1234, at least 5 pairs at a place.", text)
        for case, value in (("mma16", "0.2500"), ("fma32", "0.7500"), ("mma16, plain copies", "0.5000")):
            self.assertIn(f"| decode/bf16/4096/b32/g4/sm_90, {case} | {value} |", text)
        file.write_text(json.dumps({**said, "commit": "abc1234-dirty"}))
        self.assertIn("names no build", script(*self.flags, "report", "box", file).stderr)
        missing = {"step": "environment/clocks", "status": "missing", "seconds": 0, "result": "no tool"}
        for text, told in (("{}", "has no commit, date, steps"), ("no JSON", "report.json"),
                           (json.dumps({**said, "steps": [missing]}), "no bench that ended")):
            file.write_text(text)
            done = script(*self.flags, "report", "box", file)
            self.assertIn(told, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_peer_has_a_table_of_its_own(self):
        rows = [{"case": "64 clients/sharing", "unit": "tokens/s", "value": 512.25, "peer": 64.5,
                 "ratio": 7.9419, "median": 7.5},
                {"case": "decode", "unit": "ms/token", "peer": 1.25, "note": "no such codec"}]
        measured = {"date": "2026-02-01", "commit": "abc1234", "load": 0.5, "bench": "shared_prefix",
                    "peer": "llama-cpp-python 0.3.36", "threads": 2, "rounds": 3, "rows": rows}
        (self.records / "box.json").write_text(json.dumps(
            {"kind": "box", "cpu": "2 processors: a CPU", "benches": {"shared_prefix": measured}}))
        self.assertEqual(script(*self.flags, "page").returncode, 0)
        text = self.page.read_text()
        for part in ("### box: `make bench-shared-prefix`", "beside llama-cpp-python 0.3.36",
                     "2 threads, 3 rounds",
                     "| 64 clients/sharing | 512.2 | 64.50 | tokens/s | 7.942 | 7.500 |",
                     "| decode |  | 1.250 | ms/token |  |  |"):
            self.assertIn(part, text)

    def test_a_section_says_when_and_what_was_measured(self):
        self.keep(instructions=38409401)
        script(*self.flags, "page")
        text = self.page.read_text()
        for part in ("# Benchmarks", "## box", "2026-01-31, commit abc1234", "kernels avx3_dl",
                     "counted on avx2", "| 38,409,401 |",
                     "decode: 1 row over 8192 tokens, 1 layer"):
            self.assertIn(part, text)

    def test_figures_keep_four_digits(self):
        for value, shown in ((0.0123456, "0.0123"), (0.5, "0.5000"), (1.2346, "1.235"),
                             (12.346, "12.35"), (123456.7, "123,457"), (0, "0")):
            self.keep(value=value)
            script(*self.flags, "page")
            self.assertIn(f"| decode/f16/32768/t1 | {shown} |", self.page.read_text())


class Records(unittest.TestCase):
    def test_ratios_are_those_of_value_and_floor(self):
        for path in RECORDS.glob("*.json"):
            for name, measured in json.loads(path.read_text())["benches"].items():
                self.assertEqual(measured["bench"], name)
                for row in measured["rows"]:
                    if "peer" in measured:  # Quire / peer, whatever is better
                        best, other = row.get("value"), row["peer"]
                        if best is None:
                            continue
                    else:
                        best, other = row["value"], row["floor"]
                    if row.get("better") == "less":
                        best, other = other, best
                    self.assertAlmostEqual(row["ratio"], best / other, places=6,
                                           msg=f"{path.name}: {row['case']}")


if __name__ == "__main__":
    unittest.main()
