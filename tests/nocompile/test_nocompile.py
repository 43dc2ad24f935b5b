"""Programs that must not compile.

Each *.cc beside this file compiles as it stands; with QUIRE_MUST_NOT_COMPILE defined it must fail
with the message its `// expect: regex` line names. `// compiler: NAME` and `// flags: ...` are
optional lines.
"""

import pathlib
import re
import shutil
import subprocess
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def directive(text, name, default=None):
    match = re.search(rf"^// {name}: (.+)$", text, re.MULTILINE)
    return match.group(1) if match else default


class NoCompile(unittest.TestCase):
    def check(self, path):
        text = path.read_text()
        compiler = directive(text, "compiler", "g++")
        expect = directive(text, "expect")
        self.assertIsNotNone(expect, "the file has no `// expect:` line")
        if shutil.which(compiler) is None:
            self.skipTest(f"{compiler} is not installed")
        command = [compiler, "-std=c++23", "-fsyntax-only", "-I", ROOT / "include", "-I",
                   ROOT / "src", *directive(text, "flags", "").split(), path]
        good = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(good.returncode, 0, f"the correct half does not compile:\n{good.stderr}")
        bad = subprocess.run([*command, "-DQUIRE_MUST_NOT_COMPILE"], capture_output=True, text=True)
        self.assertNotEqual(bad.returncode, 0, "it compiled")
        self.assertRegex(bad.stderr, expect)


def add_tests():
    for path in sorted(HERE.glob("*.cc")):
        setattr(NoCompile, f"test_{path.stem}", lambda self, path=path: self.check(path))


add_tests()

if __name__ == "__main__":
    unittest.main()
