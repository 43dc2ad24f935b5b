"""`--remote` between hosts: each server in a network namespace of its own, on a bridge with Redis, so that one can be
cut off while the other goes on. Needs root, so it runs where the tests do: every night, in a container.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import time

import pytest

import quire_server
import remote_servers
from test_codecs import PROMPT

BLOCK = 16
REUSABLE = 400 // BLOCK * BLOCK - BLOCK  # of a prompt of about 400 tokens, at least


def may_make_namespaces():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"quire-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


pytestmark = [pytest.mark.skipif("QUIRE_THOROUGH" not in os.environ, reason="every night"),
              pytest.mark.skipif(remote_servers.REDIS is None, reason="needs the package redis-tools")]


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Hosts:
    """Network namespaces on a bridge, where the test itself has the address `here`."""

    def __init__(self, names):
        self.tag = f"q{os.getpid() % 10000}"
        net = f"10.77.{os.getpid() % 250}"
        self.here = f"{net}.254"
        self.bridge = f"{self.tag}br"
        self.links = {}
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.here}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for number, name in enumerate(names, 1):
            space, link = f"{self.tag}{name}", f"{self.tag}v{name}"
            ip("netns", "add", space)
            self.links[name] = link
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", link, "master", self.bridge, "up")
            ip("-n", space, "addr", "add", f"{net}.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def close(self):
        for name in self.links:
            subprocess.run(["ip", "netns", "del", f"{self.tag}{name}"], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)

    def cut(self, name):
        ip("link", "set", self.links[name], "down")

    def mend(self, name):
        ip("link", "set", self.links[name], "up")

    @contextlib.contextmanager
    def on(self, name):
        """What this thread starts and connects meanwhile is on that host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net", "rb") as home, open(f"/run/netns/{self.tag}{name}", "rb") as there:
            assert libc.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(home.fileno(), 0) == 0


@pytest.fixture
def hosts():
    if not may_make_namespaces():
        pytest.skip("needs root and iproute2")
    made = Hosts(["a", "b"])
    yield made
    made.close()


def test_a_host_that_is_cut_off_serves_nothing_that_was_erased(hosts, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[[tenant]]\nname = "alice"\nkeys = ["alice-0123456789abcdef"]\n'
                    '[[tenant]]\nname = "bob"\nkeys = ["bob-0123456789abcdef"]\n'
                    '[[tenant]]\nname = "carol"\nkeys = ["carol-0123456789abcdef"]\n')
    keys.chmod(0o600)
    fleet = tmp_path / "fleet.key"
    fleet.write_bytes(bytes(range(32)))
    fleet.chmod(0o600)
    texts = {}

    def asked(host, serving, name, who):
        """Tokens that were there. What is said is the same each time."""
        with hosts.on(host):
            status, answer = serving.ask("/v1/completions", {"prompt": PROMPT[:400], "max_tokens": 8},
                                         key=f"{who}-0123456789abcdef", headers={"X-Request-Id": name})
        assert status == 200, answer
        assert texts.setdefault("said", answer["choices"][0]["text"]) == answer["choices"][0]["text"]
        return serving.line_of(name)["cache"]["reused_tokens"]

    def remote(host, serving):
        with hosts.on(host):
            return serving.ask("/v1/cache", url=serving.operator_url)[1]["store"]["remote"]

    def wait_until(holds):
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.1)

    with contextlib.ExitStack() as ends:
        server = ends.enter_context(remote_servers.redis(tmp_path / "redis", "--bind", hosts.here, "127.0.0.1",
                                                         "--protected-mode", "no"))
        flags = ["--remote", f"redis://{hosts.here}:{server.port}/hosts", "--fleet-key", fleet, "--load", "always",
                 "--api-keys", keys, "--operator-listen", "127.0.0.1:0", "--remote-writes", "all"]

        def serve(host, folder):
            with hosts.on(host):
                return ends.enter_context(quire_server.serving(tmp_path / folder, *flags, "--store",
                                                               tmp_path / folder / "store"))

        a, b = serve("a", "a"), serve("b", "b")
        assert asked("a", a, "a1", "alice") == asked("a", a, "a2", "bob") == 0
        wait_until(lambda: remote("a", a)["written"] >= 2 * REUSABLE // BLOCK)
        # Another host, which has neither directory nor loopback in common with the first.
        assert asked("b", b, "b1", "bob") >= REUSABLE
        hosts.cut("b")
        wait_until(lambda: remote("b", b)["breaker"] != "closed")
        for tenant in ("alice", "carol"):
            with hosts.on("a"):
                status, erased = a.ask("/v1/cache/erase", {"tenant": tenant}, url=a.operator_url)
            assert status == 200, erased
        # Cut off, it has what it had itself, which is nothing of carol; that it computes, without word of the erasure.
        assert asked("b", b, "b2", "bob") >= REUSABLE
        assert asked("b", b, "b3", "carol") == 0
        hosts.mend("b")
        wait_until(lambda: remote("b", b)["epochs_known"])
        assert asked("b", b, "b4", "bob") >= REUSABLE
        assert asked("b", b, "b5", "carol") == 0, "it has heard, and what it computed meanwhile is of before"
        again = serve("b", "again")
        assert asked("b", again, "c1", "bob") >= REUSABLE
        assert asked("b", again, "c2", "alice") == 0
