"""A pytest plug-in: LMCache's own tests of connectors run on quire.lmcache.QuireStore where they
would run on their mock. Each connector they make has a store of its own."""

import shutil
import tempfile

from quire.lmcache import QuireStore


class QuireConnector(QuireStore):
    made = 0

    def __init__(self):
        QuireConnector.made += 1
        self._directory = tempfile.mkdtemp(prefix="quire_lmcache_")
        super().__init__(self._directory, namespace="tests", cap_bytes=32 << 20,
                         commit_interval_s=0.002)

    def close(self):
        super().close()
        shutil.rmtree(self._directory, ignore_errors=True)


class RecordingConnector(QuireConnector):
    """Remembers the lengths of buffers, as the one that LMCache derives from its mock."""

    def __init__(self):
        super().__init__()
        self.set_lengths, self.get_lengths = [], []

    def submit_batch_set(self, keys, bufs):
        self.set_lengths.extend(len(buffer) for buffer in bufs)
        return super().submit_batch_set(keys, bufs)

    def submit_batch_get(self, keys, bufs):
        self.get_lengths.extend(len(buffer) for buffer in bufs)
        return super().submit_batch_get(keys, bufs)


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        if not hasattr(module, "MockNativeConnector"):
            continue
        module.MockNativeConnector = QuireConnector
        module.RecordingNativeConnector = RecordingConnector


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"connectors on Quire: {QuireConnector.made}")
