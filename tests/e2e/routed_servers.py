"""Two `quire serve` with KV events, and examples/router in front of them."""

import contextlib
import os
import sys
import threading

import quire_cli
import quire_server

sys.path.insert(0, str(quire_cli.REPOSITORY / "examples/router"))

import kv_index  # noqa: E402, F401
import router as example  # noqa: E402


def endpoints(folder):
    """Of the events, and of what is asked again. A socket's name has at most 107 bytes."""
    name = f"ipc:///{os.path.relpath(folder, '/')}"
    return f"{name}/e", f"{name}/r"


def events_flags(events, replay):
    return "--events", events, "--events-replay", replay


@contextlib.contextmanager
def routed(folder, policy="prefix", *flags):
    """Two servers and the router in front of them."""
    with contextlib.ExitStack() as stack:
        servers, behind = [], []
        for name in "ab":
            (folder / name).mkdir(parents=True)
            ends = endpoints(folder / name)
            server = stack.enter_context(quire_server.serving(folder / name, *events_flags(*ends), *flags))
            servers.append(server)
            behind.append(example.Server(server.url, *ends))
        listening = example.serve(example.Router(behind, policy), "127.0.0.1", 0)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        stack.callback(listening.server_close)
        stack.callback(listening.shutdown)
        yield f"http://127.0.0.1:{listening.server_port}", behind, servers
