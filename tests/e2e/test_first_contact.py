"""The archive for a machine with a device, unpacked and run from end to end on the emulated one."""

import json
import os
import pathlib
import subprocess
import tarfile

import pytest

import quire_cli

SCRIPTS = quire_cli.REPOSITORY / "scripts"
CODECS = "f32 f16 bf16 fp8_e4m3 fp8_e5m2 int8 int4 nf4 fp4 q25".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("device")
    build = pathlib.Path(quire_cli.binary()).parent
    if not (build / "bin/cuda_test").exists():
        pytest.skip(f"{build} has no cuda_test: its suites are part of the archive")
    subprocess.run([SCRIPTS / "device-bundle", "--build", build, "--output", at / "bundle.tar.gz",
                    "--no-sanitizer"], check=True, capture_output=True, timeout=300)
    assert (at / "bundle.tar.gz").stat().st_size < 60 << 20
    with tarfile.open(at / "bundle.tar.gz") as archive:
        archive.extractall(at, filter="data")
    return at / "quire-device"


def test_the_archive_has_all_that_its_programs_load(folder):
    names = {path.name for path in (folder / "lib").iterdir()}
    for program in (folder / "bin").iterdir():
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for line in said.splitlines():
            library = line.split()[0]
            if "=>" in line and not (folder / "lib/glibc" / library).exists():
                assert library in names, f"{program.name} needs {library}"


@pytest.mark.skipif("QUIRE_THOROUGH" not in os.environ,
                    reason="two minutes of suites that run beside this one anyway: make thorough")
def test_a_rehearsal_reports_every_step(folder, tmp_path):
    done = subprocess.run([folder / "first-contact", "--output", tmp_path, "--device", "emulated",
                           "--seconds", "1500"], capture_output=True, text=True, timeout=1600, cwd="/")
    report = json.loads((tmp_path / "report.json").read_text())
    wrong = [step for step in report["steps"] if step["status"] in ("failed", "timeout", "left_out")]
    assert done.returncode == 0 and not wrong, json.dumps(wrong, indent=1) + done.stdout
    assert report["finished"]
    steps = {step["step"]: step for step in report["steps"]}
    for codec in CODECS:
        said = steps[f"digest/{codec}"]["result"]
        assert said["cpu"] == said["emulated"] and len(said["cpu"]) == 32
    stages = steps["digest/pipeline"]["result"]
    assert stages["cpu"] == stages["emulated"]
    bulk = steps["digest/mma16 bulk and plain"]["result"]
    assert bulk["emulated"] == bulk["emulated:plain"] != steps["digest/bf16"]["result"]["cpu"]
    for name in ("suite/CudaAttention", "suite/CudaBlockOps", "mma16/staging", "mma16/the instruction"):
        assert steps[name]["result"]["passed"] > 0 and steps[name]["result"]["skipped"] == 0, name
    benches = [step["result"] for name, step in steps.items() if name.startswith("bench ")]
    assert {bench["bench"] for bench in benches} == {"attention", "cascade", "model", "tier"}
    assert all(row["value"] > 0 and row["floor"] > 0 for bench in benches for row in bench["rows"])
    # A rehearsal has no device for these, and says so.
    for name in ("environment/driver", "sanitizer/memcheck", "sanitizer/racecheck", "ncu/RunSplits"):
        assert steps[name]["status"] == "missing", name
