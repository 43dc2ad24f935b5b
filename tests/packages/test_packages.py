"""What goes into which Debian package, and whose licence texts go with it.

Looks at the install components and at the build in QUIRE_BUILD (build/release if that is not set).
`make test-deb` makes the packages and tries them in a fresh Debian 12 root.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build" / "release")).resolve()


def load_script(name):
    """A Python script without the ending .py, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


package_files = load_script("package-files")


def installed(component, prefix):
    environment = {name: value for name, value in os.environ.items() if name != "DESTDIR"}
    subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix, "--component", component],
                   check=True, capture_output=True, env=environment)
    return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}


class Components(unittest.TestCase):
    """The files that only packages have are made by `make deb`; here empty ones stand for them."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        made = BUILD / "package-files"
        for name in ("changelog.gz", "quire.1.gz", *(f"{component}/copyright" for component in
                                                     package_files.COMPONENTS)):
            if not (made / name).exists():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).touch()
        cls.files = {component: installed(component, pathlib.Path(folder.name) / component)
                     for component in package_files.COMPONENTS}

    def test_the_library_is_alone_in_its_package(self):
        names = {path for path in self.files["library"] if not path.startswith("share/doc/")}
        self.assertEqual(len(names), 4)
        for name in names:  # each file and its soname; linkers' names are for developers
            self.assertRegex(name, r"^lib/libquire(_engine)?\.so(\.[0-9]+)+$")

    def test_headers_and_what_finds_them(self):
        files = self.files["development"]
        for name in ("include/quire/cache.h", "include/quire/quire.h", "lib/libquire.so",
                     "lib/pkgconfig/quire.pc", "lib/cmake/quire/quireConfig.cmake",
                     "lib/cmake/quire/quireTargets.cmake"):
            self.assertIn(name, files)

    def test_the_program_and_its_model(self):
        files = self.files["program"]
        for name in ("bin/quire", "share/man/man1/quire.1.gz",
                     "share/quire/models/tiny/model.safetensors"):
            self.assertIn(name, files)

    def test_no_file_is_in_two_packages(self):
        count = sum(len(files) for files in self.files.values())
        self.assertEqual(len(set().union(*self.files.values())), count)

    def test_each_has_its_licences_and_changes(self):
        for component, files in self.files.items():
            names = {pathlib.PurePath(path).name for path in files
                     if path.startswith("share/doc/")}
            self.assertEqual(names, {"copyright", "changelog.gz"}, component)


class Licences(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.packages = package_files.packages_of(package_files.system_files(BUILD, "quire"))

    def test_every_library_of_the_program_is_found(self):
        """docs/dependencies.md says what the program is made of, the build what it really is."""
        text = (ROOT / "docs" / "dependencies.md").read_text()
        table = text[text.index("## In the program"):text.index("## To build")]
        named = set(re.findall(r"\blib[\w.+-]+-dev\b|\bnlohmann-json3-dev\b", table))
        self.assertGreater(len(named), 9)
        self.assertEqual(named - set(self.packages), set())

    def test_no_library_is_missing_from_the_document(self):
        """A package whose headers are compiled in has a row, or belongs to the compiler."""
        text = (ROOT / "docs" / "dependencies.md").read_text()
        compiler = re.compile(r"libc6-dev|linux-libc-dev|libstdc\+\+-\d+-dev|libgcc-\d+-dev")
        unnamed = {package for package in self.packages
                   if package.endswith("-dev") and package not in text
                   and not compiler.fullmatch(package)}
        self.assertEqual(unnamed, set())

    def test_texts_are_there_once(self):
        text = package_files.copyright_text(self.packages)
        self.assertTrue(text.startswith("Quire"))
        for words in ("libhwy-dev", "nlohmann-json3-dev", "Apache-2.0",
                      "Permission is hereby granted, free of charge"):
            self.assertIn(words, text)
        rule = "=" * 79
        texts = [part.strip() for part in text.split(rule)[2::2]]
        self.assertGreater(len(texts), 8)
        self.assertEqual(len(set(texts)), len(texts))
        for part in texts:
            self.assertGreater(len(part), 200)

    def test_a_package_without_a_text_is_an_error(self):
        with self.assertRaises(OSError):
            package_files.copyright_text(["no-such-package"])

    def test_a_file_of_no_package_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "owns /no-such-file"):
            package_files.packages_of(["/usr/no-such-file"])


if __name__ == "__main__":
    unittest.main()
