"""scripts/check-ptx must find each trap that nobody wrote and each read near address 0, and no other."""

import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRITTEN = """.visible .entry _Z4checkv(
\t.param .u64 _Z4checkv_param_0
)
{
\t// begin inline asm
\ttrap;
\t// end inline asm
\tret;
}
"""
UNWRITTEN = """.visible .entry _Z3runv(
\t.param .u64 _Z3runv_param_0
)
{
\t// begin inline asm
\tcvt.f32.f16 %f1, %rs1;
\t// end inline asm
$L__BB4_5:
\ttrap;
}
"""
READS = """.visible .entry _Z5weighv(
\t.param .u64 _Z5weighv_param_0
)
{
\tmov.u64 \t%rd1306, 8;
\tld.f32 \t%f1, [%rd1306];
\tmov.u64 \t%rd7, 4096;
\tadd.s64 \t%rd8, %rd9, %rd7;
\tld.global.f32 \t%f2, [%rd8+8];
\tret;
}
"""


class CheckPtx(unittest.TestCase):
    def check(self, names, **files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (pathlib.Path(folder) / f"{name}.ptx").write_text(text)
            done = subprocess.run([ROOT / "scripts" / "check-ptx", folder, *names],
                                  capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_a_trap_that_is_written_is_none_of_its_business(self):
        self.assertEqual(self.check(["model"], model=WRITTEN), (0, ""))

    def test_a_trap_that_nobody_wrote_is_named_with_its_function(self):
        status, said = self.check(["model"], model=WRITTEN + UNWRITTEN + UNWRITTEN)
        self.assertEqual(status, 1)
        self.assertIn("model.ptx: 2 traps in 1 functions", said)
        self.assertIn("_Z3runv", said)

    def test_a_read_of_a_constant_that_only_the_host_has(self):
        status, said = self.check(["attend"], attend=WRITTEN + READS)
        self.assertEqual(status, 1)
        self.assertIn("attend.ptx: 1 reads of host constants in 1 functions", said)
        self.assertIn("_Z5weighv", said)

    def test_a_file_without_ptx_was_not_looked_at(self):
        status, said = self.check(["model", "attend"], model=WRITTEN)
        self.assertEqual(status, 1)
        self.assertIn("attend.cu", said)

    def test_every_target_of_a_file_is_looked_at(self):
        status, said = self.check(["model"], **{"model.compute_80": WRITTEN,
                                                "model.compute_90": UNWRITTEN})
        self.assertEqual(status, 1)
        self.assertIn("model.compute_90.ptx", said)


if __name__ == "__main__":
    unittest.main()
