"""`quire store serve`: several processes on one store, and what becomes of it when one of them dies.

Clients are processes of Python with quire.store; packets that no client sends come from raw sockets."""

import contextlib
import json
import os
import random
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import quire.store as quire_store

BINARY = Path(os.environ.get("QUIRE_BINARY") or
              Path(__file__).resolve().parents[2] / "build/release/quire")
pytestmark = pytest.mark.skipif(not BINARY.is_file(), reason=f"{BINARY} is not built")

CAP = 64 << 20
BLOCK = 1 << 20
HANG_S = 60  # far beyond what anything here takes
HELLO = b"QUIRESOC" + struct.pack("<II", 1, 0)


def command(*arguments):
    return subprocess.run([BINARY, "store", *arguments], capture_output=True, text=True,
                          timeout=HANG_S, check=False)


class Owner:
    """The process that serves a store."""

    def __init__(self, folder, *flags):
        self.directory, self.path = folder / "store", folder / "socket"
        self.flags = ("--cap-bytes", str(CAP), "--block-bytes", str(BLOCK), "--client-bytes", "8MiB",
                      *flags)
        self.log = open(folder / "owner.log", "ab")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [BINARY, "store", "serve", self.directory, "--socket", self.path, *self.flags,
             "--json"], stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline()
        assert line, Path(self.log.name).read_text()
        self.said = json.loads(line)

    def kill(self):
        self.process.kill()
        self.process.wait(HANG_S)

    def stop(self):
        self.process.terminate()
        return self.process.wait(HANG_S)

    def client(self):
        return quire_store.BlockStore(f"unix:{self.path}")

    def raw(self):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(str(self.path))  # waits where many come at once; with a timeout it would fail
        made.settimeout(HANG_S)
        return made

    def files_bytes(self):
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


@pytest.fixture(name="owner")
def serving(tmp_path):
    made = Owner(tmp_path)
    yield made
    if made.process.poll() is None:
        made.kill()


def block(number, size=100_000):
    return random.Random(number).randbytes(size)


def in_process(owner, program, *arguments, wait=True):
    """Runs a client program; `store` is its connection."""
    code = ("import sys, quire.store\n"
            f"store = quire.store.BlockStore({'unix:' + str(owner.path)!r})\n" + program)
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)],
                               stdout=subprocess.PIPE, text=True)
    if not wait:
        return process
    out, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    return out


def test_two_processes_share_blocks(owner):
    with owner.client() as store:
        assert store.put("key", block(1), namespace="ns")
        assert not store.put("key", block(1), namespace="ns")
        found = in_process(owner, "sys.stdout.write(store.get('key', namespace='ns').hex())")
        assert bytes.fromhex(found) == block(1)
        assert store.stats()["clients"] == 1
        assert store.usage("ns")["blocks"] == 1
        store.erase("ns")
        assert store.get("key", namespace="ns") is None
        with pytest.raises(quire_store.StoreError):
            store.put("long", bytes(BLOCK + 1))


def test_what_was_durable_survives_the_owner(owner):
    with owner.client() as store:
        store.put("key", block(1))
        owner.kill()
        with pytest.raises(quire_store.StoreError, match="the process that serves"):
            store.put("other", block(2))
        owner.start()
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            with contextlib.suppress(quire_store.StoreError):
                if store.get("key") == block(1):
                    break
        assert store.get("key") == block(1)
        assert store.get("other") in (None, block(2))
        assert owner.stop() == 0
    assert not owner.path.exists()
    with quire_store.BlockStore(owner.directory) as store:
        assert store.get("key") == block(1)


def test_sigterm_ends_what_is_under_way(owner):
    with owner.client() as store:
        for number in range(20):
            store.submit_put([f"{number}"], [block(number)])
        store.flush()
        assert owner.stop() == 0
    with quire_store.BlockStore(owner.directory) as store:
        assert [store.get(f"{number}") for number in range(20)] == [block(n) for n in range(20)]


def test_clients_that_are_killed_leave_nothing(owner):
    program = ("import itertools, random\n"
               "for number in itertools.count():\n"
               "    keys = [f'{number}/{i}' for i in range(16)]\n"
               "    batch = store.submit_put(keys, [random.Random(number).randbytes(500_000)] * 16)\n"
               "    print(number, flush=True)\n"
               "    store.wait(batch)\n")
    with owner.client() as store:
        for _ in range(4):
            process = in_process(owner, program, wait=False)
            process.stdout.readline()
            process.kill()
            process.wait(HANG_S)
            process.stdout.close()
        end = time.monotonic() + HANG_S
        while store.stats()["clients"] > 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert store.stats()["clients"] == 1
        store.flush()
        assert owner.files_bytes() <= CAP
        assert store.put("after", block(1)) and store.get("after") == block(1)
    maps = Path(f"/proc/{owner.process.pid}/maps").read_text()
    end = time.monotonic() + HANG_S
    while "memfd:quire" in maps and time.monotonic() < end:
        maps = Path(f"/proc/{owner.process.pid}/maps").read_text()
    assert "memfd:quire" not in maps


def test_the_cap_holds(owner):
    with owner.client() as store:
        for number in range(0, 160, 8):
            keys = [str(number + i) for i in range(8)]
            store.put_many(keys, [block(number, BLOCK)] * 8)
            assert owner.files_bytes() <= CAP
        assert store.stats()["evicted"] > 0
        assert store.get("159") is not None


def test_a_namespace_stays_within_its_quota(owner):
    quota = 8 << 20
    with owner.client() as store:
        store.set_limits("small", quota_bytes=quota)
        for number in range(20):
            store.put(str(number), block(number, BLOCK), namespace="small")
            assert store.usage("small")["bytes"] <= quota


def test_who_may_connect(owner, tmp_path):
    assert stat.S_IMODE(owner.path.stat().st_mode) == 0o600
    again = command("serve", owner.directory, "--socket", tmp_path / "other")
    assert again.returncode != 0 and "another process" in again.stderr
    elsewhere = command("serve", tmp_path / "new", "--socket", owner.path)
    assert elsewhere.returncode != 0 and "another process listens" in elsewhere.stderr
    for flags in (("--socket-mode", "9"), ("--socket-mode", "rw"), ("--clients", "0")):
        assert command("serve", tmp_path / "new", "--socket", tmp_path / "s",
                             *flags).returncode == 2
    if os.geteuid() == 0:  # as another user
        os.chmod(tmp_path, 0o755)
        parents = [folder for folder in tmp_path.parents if folder != Path("/")]
        if all(folder.stat().st_mode & 0o001 for folder in parents):
            code = (f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                    f"s.connect({str(owner.path)!r})")
            done = subprocess.run(["python3", "-c", code], user=65534, capture_output=True,
                                  text=True, check=False, timeout=HANG_S)
            assert "PermissionError" in done.stderr


def test_a_socket_for_a_group(tmp_path):
    owner = Owner(tmp_path, "--socket-mode", "0660")
    assert stat.S_IMODE(owner.path.stat().st_mode) == 0o660
    assert owner.stop() == 0
    wrong = command("serve", tmp_path / "new", "--socket", tmp_path / "s",
                          "--socket-group", "no-such-group")
    assert wrong.returncode != 0 and "no such group" in wrong.stderr


def test_garbage_on_the_socket_harms_nobody(owner):
    random_of = random.Random(7)
    with owner.client() as store:
        store.put("key", block(1))
        for round_number in range(200):
            with owner.raw() as raw:
                if round_number % 4:
                    raw.send(HELLO)
                with contextlib.suppress(OSError):  # the owner has left
                    for _ in range(8):
                        kind = struct.pack("<I", random_of.randrange(12))
                        raw.send(kind + random_of.randbytes(random_of.randrange(1, 3000)))
        assert store.get("key") == block(1)
        assert store.stats()["blocks"] == 1
    assert owner.process.poll() is None


def test_the_memory_is_sealed(owner):
    with owner.raw() as raw:
        raw.send(HELLO)
        _, descriptors, _, _ = socket.recv_fds(raw, 65_536, 4)
        assert len(descriptors) == 1
        with pytest.raises(PermissionError):
            os.ftruncate(descriptors[0], 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptors[0], 1 << 40)
        os.close(descriptors[0])


def test_status(owner):
    with owner.client() as store:
        store.put("key", block(1), namespace="ns")
        said = command("status", owner.path, "--namespace", "ns", "--json")
        said = json.loads(said.stdout)
        assert (said["clients"], said["blocks"], said["puts"]) == (1, 1, 1)
        assert said["cap_bytes"] == CAP and said["namespace"]["blocks"] == 1
        assert "clients" in command("status", owner.path).stdout
    owner.kill()
    gone = command("status", owner.path)
    assert gone.returncode == 3 and "no process listens" in gone.stderr


def test_too_many_clients(tmp_path):
    owner = Owner(tmp_path, "--clients", "1")
    with owner.client():
        with pytest.raises(quire_store.StoreError, match="the most it may"):
            owner.client()
    assert owner.stop() == 0
