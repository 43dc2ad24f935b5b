"""A store on a real disk: `quire store`, kill -9 while it is written, damage, a second owner, `quire sim`.

Records come from bin/store_tool (sim/tools/store_tool.cc): whatever it called durable must be there
after a kill. QUIRE_KILLS=100 kills more often.
"""

import json
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

import quire_cli

LAYER_BYTES = 20_000  # eight sections: 160 kB a record
CAP = 200 << 20
KILLS = int(os.environ.get("QUIRE_KILLS", "12"))


def tool():
    path = quire_cli.binary().parent / "bin" / "store_tool"
    if not path.is_file():
        pytest.skip(f"{path} is not built")
    return path


def write(store, first, count):
    return subprocess.run([tool(), "write", store, str(first), str(count), str(LAYER_BYTES), str(CAP)],
                          capture_output=True, text=True, timeout=120, check=False)


def check(store, numbers):
    done = subprocess.run([tool(), "check", store, str(LAYER_BYTES), str(CAP)],
                          input=" ".join(str(number) for number in numbers), capture_output=True,
                          text=True, timeout=120, check=True)
    return json.loads(done.stdout.removeprefix("open\n"))


def store_command(what, store):
    return quire_cli.run("store", what, store, "--json")


@pytest.fixture(name="store")
def filled(tmp_path):
    path = tmp_path / "store"
    done = write(path, 0, 100)
    assert done.stdout.count("ok ") == 100, done.stderr
    return path


def test_everything_is_found_after_a_restart(store):
    seen = check(store, range(101))
    assert (seen["found"], seen["missing"], seen["damaged"], seen["wrong"]) == (100, 1, 0, 0)


def test_stat_ls_verify_and_upgrade_agree(store):
    for what in ("stat", "verify", "ls", "upgrade"):
        done = store_command(what, store)
        assert done.exit_code == 0, done.describe()
        assert done.json["records"] == 100
        assert done.json["damaged"] == 0
        assert done.json["cap_bytes"] == CAP
    listed = store_command("ls", store).json["list"]
    assert len({record["key"] for record in listed}) == 100
    assert sum(path.stat().st_size for path in store.iterdir()) <= CAP


def test_damage_is_a_failed_check_and_is_repaired(store):
    segment = store / "segment-000000"
    content = bytearray(segment.read_bytes())
    content[50_000] ^= 1
    segment.write_bytes(content)
    (store / "catalogue.db").write_bytes(b"no database at all" * 100)
    verified = store_command("verify", store)
    assert verified.exit_code == 1
    assert json.loads(verified.stdout)["damaged"] == 2
    repaired = store_command("repair", store)
    assert repaired.exit_code == 0, repaired.describe()
    assert (repaired.json["damaged"], repaired.json["repaired"]) == (0, 2)
    assert store_command("verify", store).exit_code == 0
    seen = check(store, range(100))
    assert (seen["found"], seen["missing"], seen["wrong"]) == (99, 1, 0)


def test_a_zeroed_segment_is_its_lost_records(store):
    segment = store / "segment-000000"
    segment.write_bytes(bytes(segment.stat().st_size))
    verified = store_command("verify", store)
    assert verified.exit_code == 1
    left = json.loads(verified.stdout)
    assert left["records"] < 100 and left["damaged"] == 100 - left["records"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)],
                         ids=["directory", "pipe", "loop"])
def test_what_is_no_file_in_a_segments_place_costs_that_segment(store, make):
    segment = store / "segment-000000"
    held = store_command("stat", store).json["records"]
    segment.unlink()
    make(segment)
    left = store_command("stat", store)
    assert 0 < left.json["records"] < held
    assert store_command("verify", store).exit_code == 1
    seen = check(store, range(100))
    assert (seen["found"], seen["wrong"]) == (left.json["records"], 0)
    done = write(store, 200, 5)
    assert done.stdout.count("ok ") == 5, done.stderr
    repaired = store_command("repair", store)
    assert repaired.exit_code == 0, repaired.describe()
    assert (store / "segment-000000.damaged").is_symlink() or (store / "segment-000000.damaged").exists()
    assert store_command("verify", store).exit_code == 0


def test_exit_codes_of_what_is_no_store(tmp_path):
    assert store_command("stat", tmp_path / "nowhere").exit_code == 3
    assert store_command("verify", tmp_path).exit_code == 3
    assert quire_cli.run("store", "frobnicate", tmp_path).exit_code == 2


def test_one_owner_and_lookers_beside_it(store):
    owner = subprocess.Popen([tool(), "check", store, str(LAYER_BYTES), str(CAP)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "open\n"  # before that a verification could take the lock
        assert store_command("verify", store).exit_code == 4
        assert store_command("stat", store).json["records"] == 100
        assert len(store_command("ls", store).json["list"]) == 100
        for what in ("stat", "ls", "verify"):
            done = quire_cli.run("store", what, store, "--read-only", "--json")
            assert done.exit_code == 0 and done.json["records"] == 100, done.describe()
        second = write(store, 1000, 1)
        assert second.returncode == 4
        assert "another process has it open" in second.stderr
    finally:
        owner.stdin.close()
        owner.wait(timeout=60)
    assert store_command("verify", store).exit_code == 0


def test_kill_9_while_writing_loses_nothing_durable(tmp_path):
    """The cap is reached on the way, so segments are being reused when the process dies."""
    store = tmp_path / "store"
    rng = random.Random(1)
    first = 0
    open_ms = []
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [tool(), "write", store, str(first), "1000000", str(LAYER_BYTES), str(CAP)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(rng.uniform(0.1, 0.7))
        beside = quire_cli.run("store", "verify", store, "--read-only", "--json")
        assert beside.exit_code in (0, 3), beside.describe()  # 3: there is no store yet
        writer.kill()
        out, err = writer.communicate(timeout=60)
        killed = store_command("verify", store)
        assert killed.exit_code == 0, killed.describe()
        durable = [int(line.split()[1]) for line in out.splitlines()
                   if line.startswith("ok ") and len(line.split()) == 2]
        if not durable:
            continue
        # Far fewer than a reused store holds: none of these was evicted.
        newest = durable[-300:]
        seen = check(store, newest)
        assert seen["wrong"] == 0 and seen["damaged"] == 0, (seen, err)
        # The last line may have been cut off inside its number.
        assert seen["missing"] <= 1, (seen, len(durable), err)
        open_ms.append(seen["open_ms"])
        first = durable[-1] + 1000
        assert sum(path.stat().st_size for path in store.iterdir()) <= CAP
    assert first > 1000
    assert sorted(open_ms)[len(open_ms) // 2] < 2000  # a pause of the machine hits few of them
    verified = store_command("verify", store)
    assert verified.exit_code == 0, verified.describe()


def test_sim_runs_seeds_and_repeats_itself():
    runs = [quire_cli.run("sim", "--seeds", "1..8", "--steps", "300", "--json") for _ in range(2)]
    for run in runs:
        assert run.exit_code == 0, run.describe()
        assert run.json["steps"] == 2 * 2400  # of the store alone, and of caches on it
        assert run.json["wrong_bytes"] == 0 and run.json["lost_bytes"] == 0
        assert run.json["faults"] > 0
    assert runs[0].json == runs[1].json
    engines = [
        quire_cli.run("sim", "--what", "engine", "--seeds", "1..8", "--steps", "300", "--json") for _ in range(2)
    ]
    for run in engines:
        assert run.exit_code == 0, run.describe()
        assert run.json["steps"] == 2400 and run.json["answers"] > 300
    assert engines[0].json == engines[1].json != runs[0].json
    assert quire_cli.run("sim", "--seeds", "9..1").exit_code == 2
