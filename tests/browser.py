"""Chromium, driven by its own driver over HTTP (WebDriver): the few calls that the report's tests need."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

in_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver here")


class Browser:
    """A WebDriver session: the few calls that these tests need."""

    def __init__(self, root: str, profile: Path) -> None:
        self.root = root
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": CHROMIUM}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.root += f"/session/{session['sessionId']}"

    def call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=240) as answer:
            return json.load(answer)["value"]

    def run(self, script):
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def run_async(self, script):
        """Run a script that calls ``done(value)`` when it is through."""
        whole = "const done = arguments[arguments.length - 1];" + script
        return self.call("POST", "/execute/async", {"script": whole, "args": []})

    def devtools(self, what, **params):
        return self.call("POST", "/goog/cdp/execute", {"cmd": what, "params": params})

    def logs(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def open(self, page: Path, width: int, *, is_dark: bool = False):
        """Load the page at a width and wait until every figure is drawn."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("POST", "/url", {"url": page.as_uri()})
        self.until(
            "return document.readyState === 'complete' && (document.documentElement.dataset.ready === 'true'"
            " || !document.getElementById('timeline-data'))"
        )

    def until(self, script, seconds=200):
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never came true: {script}"
            time.sleep(0.1)


def axe_source() -> str:
    """The script of axe-core, from the file that AXE_CORE names; without it the test is skipped, aloud."""
    if "AXE_CORE" not in os.environ:
        pytest.skip("no axe-core: npm install --prefix DIR axe-core, AXE_CORE=DIR/node_modules/axe-core/axe.min.js")
    return Path(os.environ["AXE_CORE"]).read_text("utf-8")


@contextmanager
def driver(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([str(DRIVER), f"--port={port}"], **quiet) as process:
        root = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{root}/status", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.1)
            browser = Browser(root, folder)
            yield browser
            browser.call("DELETE", "")
        finally:
            process.terminate()
