"""Drives a headless Chromium through its debugging pipe; nothing but Debian's package is needed.

    with chromium_pipe.page(folder, url) as page:
        page.wait("document.title")
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time


class Page:
    """One tab. JavaScript goes in as text; what it evaluates to comes back as a Python value."""

    def __init__(self, process, write_fd, read_fd):
        self.process = process
        self.write_fd, self.read_fd = write_fd, read_fd
        self.buffer = b""
        self.number = 0
        self.errors = []  # what the page's scripts threw or logged as an error
        targets = self.send("Target.getTargets", session=None)["targetInfos"]
        tab = next(target for target in targets if target["type"] == "page")
        self.session = self.send("Target.attachToTarget", session=None, targetId=tab["targetId"],
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.send(domain + ".enable")

    def send(self, method, session="own", **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session == "own":
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while True:
            answer = self.read(end)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def read(self, end):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_fd], [], [], max(0, end - time.monotonic()))
            assert ready, "chromium does not answer"
            more = os.read(self.read_fd, 1 << 20)
            assert more, "chromium ended"
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        if message.get("method") == "Log.entryAdded" and \
                message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message

    def evaluate(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression, seconds=30):
        """Until it is true; gives what it then is."""
        end = time.monotonic() + seconds
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            assert time.monotonic() < end, f"never: {expression}"
            time.sleep(0.05)

    def go(self, url):
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def colours(self, scheme):
        self.send("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def key(self, name, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, text=text,
                      windowsVirtualKeyCode=code)

    def screenshot(self, path):
        data = self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def accessible(self):
        """[(role, name)] of what a screen reader is told."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", ""))
                for node in nodes if not node["ignored"]]


def program():
    return shutil.which("chromium")


@contextlib.contextmanager
def page(folder, url):
    to_browser, from_us = os.pipe()
    from_browser, to_us = os.pipe()

    def as_3_and_4():
        os.dup2(to_browser, 30)
        os.dup2(to_us, 40)
        os.dup2(30, 3)
        os.dup2(40, 4)
    process = subprocess.Popen(
        [program(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
         "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
         f"--user-data-dir={folder / 'profile'}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=(folder / "chromium.log").open("wb"), preexec_fn=as_3_and_4, close_fds=False)
    os.close(to_browser)
    os.close(to_us)
    try:
        tab = Page(process, from_us, from_browser)
        tab.size(1200, 900)
        tab.go(url)
        yield tab
    finally:
        process.kill()
        process.wait()
        os.close(from_us)
        os.close(from_browser)
