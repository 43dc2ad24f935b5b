"""What `make install` leaves is enough for a program that knows nothing of this tree.

Installs the build in QUIRE_BUILD (build/release if that is not set) into temporary folders, builds
the two examples there by the CMake package and by pkg-config, and looks at what the library shows.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = pathlib.Path(os.environ.get("QUIRE_BUILD", ROOT / "build" / "release")).resolve()
sys.path.insert(0, str(HERE))
import symbols  # noqa: E402

VERSION = re.search(r'kVersion = "([0-9.]+)"',
                    (ROOT / "src" / "base" / "version.h").read_text()).group(1)
SONAME = f"libquire.so.{VERSION.rsplit('.', 1)[0]}"
SAID = """reused   0 of 100 tokens, the rest is never_seen
reused  96 of 100 tokens, the rest is partial_block
the bits are the same
"""


def run(*command, **options):
    """Runs a command; its output is the message when it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def environment(**variables):
    """Ours without what could lead a tool to another Quire or another place."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "CPATH",
                            "PREFIX", "DESTDIR", "MAKEFLAGS")}
    return dict(kept, **variables)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.temporary = pathlib.Path(folder.name)
        cls.prefix = cls.temporary / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix, env=environment())
        # As a package is made: staged for another prefix, then moved to where nobody planned.
        run("cmake", "--install", BUILD, "--prefix", "/opt/quire",
            env=environment(DESTDIR=str(cls.temporary / "stage")))
        cls.moved = cls.temporary / "moved"
        shutil.move(cls.temporary / "stage" / "opt" / "quire", cls.moved)
        cls.library = cls.prefix / "lib" / "libquire.so"

    def files(self, prefix):
        return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}

    def test_everything_is_installed_and_nothing_else(self):
        headers = {f"include/quire/{path.name}" for path in (ROOT / "include/quire").glob("*.h")}
        package = {f"lib/cmake/quire/{name}" for name in (
            "quireConfig.cmake", "quireConfigVersion.cmake", "quireTargets.cmake")}
        model = {f"share/quire/models/tiny/{path.name}" for path in (ROOT / "models/tiny").iterdir()
                 if path.suffix in (".json", ".jsonl", ".safetensors", ".txt")}
        rest = {"bin/quire", "lib/pkgconfig/quire.pc", "share/doc/quire/LICENSE", "lib/libquire.so",
                f"lib/{SONAME}", f"lib/libquire.so.{VERSION}", "lib/libquire_engine.so",
                f"lib/libquire_engine.so.{SONAME.split('.so.')[1]}",
                f"lib/libquire_engine.so.{VERSION}", "lib/pkgconfig/quire-engine.pc"}
        found = self.files(self.prefix)
        per_build = {name for name in found
                     if re.fullmatch(r"lib/cmake/quire/quireTargets-[a-z]+\.cmake", name)}
        self.assertEqual(len(per_build), 1)
        self.assertIn("share/quire/models/tiny/model.safetensors", model)
        self.assertEqual(found, headers | package | model | rest | per_build)
        self.assertEqual(self.files(self.moved), found)
        self.assertFalse(any((self.temporary / "stage").rglob("*.h")))

    def test_the_program_runs(self):
        self.assertIn("codecs", run(self.moved / "bin" / "quire", "info", "--json"))
        # The bundled model is found from the program's own folder.
        said = run(self.moved / "bin" / "quire", "demo", "--json", cwd=self.temporary)
        self.assertIn("sessions", said)

    def test_make_passes_prefix_and_destdir(self):
        said = run("make", "-n", "-C", ROOT, "install", "PREFIX=/p q", "DESTDIR=/d e",
                   env=environment())
        self.assertIn('DESTDIR="/d e" cmake --install build/release --prefix "/p q"', said)
        self.assertIn('DESTDIR="" cmake --install build/release --prefix "/usr/local"',
                      run("make", "-n", "-C", ROOT, "install", env=environment()))

    def test_package_files_name_no_place_and_ask_nothing(self):
        files = [*(self.prefix / "lib/cmake/quire").iterdir(),
                 *(self.prefix / "lib/pkgconfig").iterdir()]
        for path in files:
            text = path.read_text()
            for place in (str(ROOT), str(BUILD), str(self.temporary), "/usr/local", "/opt"):
                self.assertNotIn(place, text, path.name)
            # Neither flags nor the libraries inside reach those who link it.
            for word in ("COMPILE_OPTIONS", "COMPILE_DEFINITIONS", "LINK_LIBRARIES", "LINK_OPTIONS",
                         "LINK_DEPENDENT", "-ffp-contract", "-fvisibility", "find_dependency",
                         "hwy", "fmt", "absl", "sodium", "Requires"):
                self.assertNotIn(word, text, path.name)

    def test_versions_of_the_same_minor_are_accepted(self):
        file = self.prefix / "lib/cmake/quire/quireConfigVersion.cmake"
        major, minor, _ = VERSION.split(".")
        for wanted, compatible in ((f"{major}.{minor}", True), (VERSION, True),
                                   (f"{major}.{int(minor) + 1}", False),
                                   (f"{major}.{minor}.999", False),
                                   (f"{int(major) + 1}.{minor}", False)):
            part = wanted.split(".")
            script = self.temporary / "version.cmake"
            script.write_text(f"""
                set(CMAKE_SIZEOF_VOID_P 8)
                set(PACKAGE_FIND_VERSION {wanted})
                set(PACKAGE_FIND_VERSION_MAJOR {part[0]})
                set(PACKAGE_FIND_VERSION_MINOR {part[1]})
                include({file})
                message("is ${{PACKAGE_VERSION_COMPATIBLE}}")""")
            self.assertEqual("is TRUE" in run("cmake", "-P", script), compatible, wanted)

    def built(self, name):
        """The program of examples/<name>, built by the installed CMake package."""
        build = self.temporary / name
        run("cmake", "-S", ROOT / "examples" / name, "-B", build,
            f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF",
            env=environment())
        run("cmake", "--build", build, env=environment())
        return build / name

    def test_examples_build_by_the_cmake_package(self):
        for name in ("embed", "embed_c"):
            program = self.built(name)
            cache = (program.parent / "CMakeCache.txt").read_text()
            self.assertIn(f"quire_DIR:PATH={self.prefix}", cache)
            self.assertEqual(run(program, env=environment()), SAID)

    def test_checkpoint_layers_of_a_training_run_halve_the_bytes_and_change_no_bit(self):
        said = run(self.built("training"), env=environment())
        before, after = map(float, re.search(r"loss (\S+) to (\S+) in", said).groups())
        self.assertLess(after, 0.9 * before)
        every, half = map(int, re.findall(r"(\d+) bytes", said))
        self.assertEqual(every, 2 * half)
        self.assertIn("the same weights: yes", said)

    def test_examples_build_by_pkg_config_where_it_was_moved(self):
        flags = run("pkg-config", "--cflags", "--libs", "quire",
                    env=environment(PKG_CONFIG_PATH=str(self.moved / "lib/pkgconfig"))).split()
        strict = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
        for name, compiler in (("embed", ["g++", "-std=c++23", "main.cc"]),
                               ("embed_c", ["gcc", "-std=c99", "main.c"])):
            program = self.temporary / f"{name}.pc"
            run(*compiler, *strict, *flags, "-o", program, cwd=ROOT / "examples" / name,
                env=environment())
            self.assertEqual(
                run(program, env=environment(LD_LIBRARY_PATH=str(self.moved / "lib"))), SAID)
        self.assertEqual(run("pkg-config", "--modversion", "quire", env=environment(
            PKG_CONFIG_PATH=str(self.moved / "lib/pkgconfig"))).strip(), VERSION)

    def talk(self, program, store, *name, **variables):
        """(name, what the example said): one life of its conversation."""
        said = run(program, ROOT / "models/tiny", store, *name, env=environment(**variables))
        first, rest = said.split("\n", 1)
        self.assertTrue(first.startswith("session "))
        return first.removeprefix("session "), rest

    def test_the_session_example_goes_on_after_its_end(self):
        program = self.built("session_c")
        flags = run("pkg-config", "--cflags", "--libs", "quire-engine",
                    env=environment(PKG_CONFIG_PATH=str(self.moved / "lib/pkgconfig"))).split()
        by_pc = self.temporary / "session_c.pc"
        run("gcc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "main.c", *flags, "-o",
            by_pc, cwd=ROOT / "examples/session_c", env=environment())
        # The same answers by both, though each has a store and a session of its own.
        name, first = self.talk(program, self.temporary / "one")
        again, second = self.talk(program, self.temporary / "one", name)
        self.assertEqual(again, name)
        path = {"LD_LIBRARY_PATH": str(self.moved / "lib")}
        other, same = self.talk(by_pc, self.temporary / "two", **path)
        self.assertEqual(same, first)
        self.assertEqual(self.talk(by_pc, self.temporary / "two", other, **path)[1], second)
        self.assertIn("\n0 of 40 tokens were not computed", first)
        self.assertRegex(second, r"\n[1-9]\d* of \d+ tokens were not computed")

    def test_the_engine_exports_its_header_alone(self):
        library = self.prefix / "lib/libquire_engine.so"
        found = symbols.exported(library)
        self.assertEqual({symbol for _, symbol in found},
                         symbols.c_functions(self.prefix / "include/quire/engine.h"))
        self.assertEqual({kind for kind, _ in found}, {"T"})
        dynamic = run("readelf", "-d", library)
        self.assertIn(f"[libquire_engine.so.{SONAME.split('.so.')[1]}]", dynamic)
        self.assertNotRegex(dynamic, r"RUNPATH|RPATH")

    def compile(self, compiler, standard, text):
        source = self.temporary / ("all.c" if compiler == "gcc" else "all.cc")
        source.write_text(text)
        run(compiler, f"-std={standard}", "-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror",
            "-fsyntax-only", "-I", self.prefix / "include", source, env=environment())

    def test_headers_are_clean_under_strict_warnings(self):
        names = sorted(path.name for path in (self.prefix / "include/quire").iterdir())
        self.compile("g++", "c++23", "".join(f"#include <quire/{name}>\n" for name in names))
        self.compile("gcc", "c99", "#include <quire/dlpack.h>\n#include <quire/quire.h>\nint x;\n")
        self.compile("gcc", "c99", "#include <quire/quire.h>\n#include <quire/dlpack.h>\nint x;\n")

    def test_a_dlpack_header_of_ones_own_is_used(self):
        self.compile("gcc", "c99", """
            #define DLPACK_DLPACK_H_
            typedef struct DLManagedTensor { int mine; } DLManagedTensor;
            typedef struct DLManagedTensorVersioned { int mine; } DLManagedTensorVersioned;
            #include <quire/dlpack.h>
            #include <quire/quire.h>
            int Mine(const struct DLManagedTensorVersioned* tensor);
            int Mine(const struct DLManagedTensorVersioned* tensor) { return tensor->mine; }
            """)

    def test_the_soname_has_the_minor_version_and_no_path(self):
        dynamic = run("readelf", "-d", self.library)
        self.assertIn(f"[{SONAME}]", dynamic)
        self.assertNotRegex(dynamic, r"RUNPATH|RPATH")

    def test_only_the_public_interface_is_exported(self):
        headers = list((self.prefix / "include/quire").glob("*.h"))
        functions = symbols.c_functions(self.prefix / "include/quire/quire.h")
        found = symbols.exported(self.library)
        self.assertEqual(
            list(symbols.violations(found, functions, symbols.code_of(headers))), [])
        names = {symbol for _, symbol in found}
        self.assertGreater(len(functions), 30)
        self.assertEqual(functions - names, set())
        for wanted in ("Cache::Create", "Plan::resident_tokens", "Lease::Release", "GatherPadded",
                       "BlockListView::block", "Geometry::Uniform", "NumericProfile::Uniform",
                       "RootKey", "ToJson", "ToDLPack", "ToDLPackLegacy", "MakeCpuAttention",
                       "MakeJudgeAttention", "MakeThreadPool", "MakeHostMemory", "MissReasonName"):
            self.assertTrue(any(name.startswith(f"quire::{wanted}") for name in names), wanted)
        # Programs derive from these and catch them across the library's edge.
        for wanted in ("AttentionBackend", "Executor", "DeviceMemory"):
            self.assertIn(f"typeinfo for quire::{wanted}", names)

    def test_the_symbol_check_can_fail(self):
        code = "class Cache { };  void ToJson();"
        planted = [("T", "quire::pool::Pool::Create(int)"),
                   ("T", "quire::CheckFailed(char const*)"),
                   ("V", "typeinfo for quire::cache::Core"), ("W", "hwy::Abort(int)"),
                   ("W", "std::vector<int>::push_back(int)"), ("T", "quire_secret"),
                   ("T", "crc32_iscsi"), ("u", "quire::Cache::counter"),
                   ("T", "fmt::v9::vformat[abi:cxx11](int)"), ("T", "main")]
        allowed = [("T", "quire::Cache::Create(int)"), ("T", "quire::ToJson[abi:cxx11](int)"),
                   ("V", "vtable for quire::Cache"), ("T", "quire_open")]
        found = list(symbols.violations(planted + allowed, {"quire_open"}, code))
        self.assertEqual(len(found), len(planted), found)

    def test_numpy_reads_blocks_in_place(self):
        run(ROOT / "scripts" / "venv")
        said = run(ROOT / "build" / "venv" / "bin" / "python", HERE / "dlpack_numpy.py",
                   self.library, env=environment())
        self.assertTrue(said.startswith("ok"), said)


if __name__ == "__main__":
    unittest.main()
