"""The package as a whole: version, stub, types, examples."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

import quire

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_version_is_the_engine_s():
    assert f'"{quire.__version__}"' in (ROOT / "src" / "base" / "version.h").read_text()


def test_the_parts_are_found_after_import_and_loaded_where_they_are_named():
    program = ("import sys, quire\n"
               "assert {'engine', 'store', 'lmcache', 'transformers'} <= set(dir(quire))\n"
               "assert 'quire.store' not in sys.modules and 'torch' not in sys.modules\n"
               "assert quire.store.BlockStore and quire.lmcache.QuireStore\n"
               "assert 'torch' not in sys.modules\n"
               "assert not hasattr(quire, 'other')\n"
               "try:\n"
               "    import torch, transformers\n"
               "except ImportError:\n"
               "    try:\n"
               "        quire.transformers\n"
               "    except ImportError as error:\n"
               "        assert 'torch' in str(error) or 'transformers' in str(error)\n"
               "    else:\n"
               "        raise AssertionError\n"
               "else:\n"
               "    assert quire.transformers.attach\n")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_name_has_a_docstring_and_is_listed():
    assert sorted(quire.__all__) == sorted(set(quire.__all__))
    for name in quire.__all__:
        thing = getattr(quire, name)
        if isinstance(thing, type) or callable(thing):
            assert thing.__doc__, name


@pytest.mark.parametrize("name", ["_quire", "_engine"])
def test_the_stub_is_that_of_the_module(name, tmp_path):
    pytest.importorskip("nanobind")
    stub = ROOT / "python" / "quire" / f"{name}.pyi"
    made = tmp_path / f"{name}.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", f"quire.{name}", "-p",
                    ROOT / "python" / "stub_patterns.txt", "-o", made], check=True, cwd=tmp_path)
    assert made.read_text() == stub.read_text(), f"renew {stub}: see docs/adapters/python.md"


def test_types_are_clean():
    pytest.importorskip("mypy")
    run = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "quire",
                          "../examples/python"],
                         cwd=ROOT / "python", capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "python").glob("*.py")),
                         ids=lambda path: path.stem)
def test_examples_run(path):
    if "transformers" in path.read_text():
        pytest.importorskip("transformers")
    run = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout
