"""Debian's Chromium without a window, for tests that look at the pages that slicer writes or serves.

It is driven by the DevTools protocol over two pipes (``--remote-debugging-pipe``: JSON and NUL), so there is
no port that another user of the machine could reach, and no library.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicer.kernel.sleep import until_readable
from tests.machines import host
from tests.machines.settings import ci
from tests.patience import Deadline, until

_START_S = 60.0
_CALL_S = 60.0
_INLINE = ("data:", "blob:")  # addresses that are data themselves
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # other sites than this machine's
)
# The browser reads calls from descriptor 3, and writes answers and events to descriptor 4. They are
# numbered by a small process that then executes it.
_WIRED = """\
import fcntl, os, sys
calls, answers = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(calls, 3), os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def need_browser() -> str:
    """The path of Chromium. Without it the test is skipped, and fails in CI."""
    path = host.tool("chromium")
    if path is None:
        reason = "chromium is not installed (Debian's chromium; `make test` installs it)"
        if ci():
            pytest.fail(f"{reason} (CI=true, so this is no skip)")
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, for all tests of this process."""
    path = need_browser()
    with tempfile.TemporaryDirectory(prefix="slicer-browser-", ignore_cleanup_errors=True) as profile:
        made = Browser(path, Path(profile))
        try:
            made.call("Browser.getVersion", deadline_s=_START_S)
            yield made
        finally:
            made.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """An empty page of it, for one test."""
    made = chromium.page()
    yield made
    made.close()


class Browser:
    """A running Chromium."""

    def __init__(self, path: str, profile: Path) -> None:
        calls, self._calls = os.pipe()
        self._answers, answers = os.pipe()
        self._log = profile / "log"
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox refuses root
        argv = [path, *_OPTIONS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WIRED, str(calls), str(answers), *argv], pass_fds=(calls, answers),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "HOME": str(profile)},
            )  # fmt: skip
        os.close(calls)
        os.close(answers)
        self._unread = b""
        self._last = 0
        self._pages: dict[str, Page] = {}

    def close(self) -> None:
        """End it with all its processes, which are a session of their own."""
        os.close(self._calls)  # it exits with its pipe
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)

    def page(self, url: str = "about:blank", *, width: int = 1280, height: int = 800) -> Page:
        """A new page, which records its errors and requests, at that address."""
        context = self.call("Target.createBrowserContext")["browserContextId"]  # its own cookies and cache
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.size(width, height)
        if url != "about:blank":
            page.go(url)
        return page

    def call(self, method: str, *, session: str = "", deadline_s: float = _CALL_S, **values: Any) -> Any:
        """The result of a method of the DevTools protocol. Fails if the browser says that it went wrong."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": values}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._calls, data) :]
        deadline = Deadline(deadline_s)
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") != self._last:
                self._take(answer)
            elif "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self, deadline: Deadline, what: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            if until_readable([self._answers], 0.1, None):
                read = os.read(self._answers, 1 << 20)
                assert read, f"the browser ended: {self._log.read_text(errors='replace')[-2000:]}"
                self._unread += read
            elif deadline.has_passed():
                raise AssertionError(f"the browser does not answer {what}")
        line, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _take(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is not None:
            page.take(event["method"], event["params"])


class Page:
    """One page. ``errors`` are what its console calls an error or a warning, and exceptions.

    ``requests`` are all addresses that it asked for, but those that are data themselves.
    """

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._is_loaded = False

    def call(self, method: str, **values: Any) -> Any:
        """As :meth:`Browser.call`, for this page."""
        return self._browser.call(method, session=self._session, **values)

    def close(self) -> None:
        """Close it, with what it stored."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def go(self, url: str) -> None:
        """Go there, and wait until the page is loaded."""
        self._is_loaded = False
        found = self.call("Page.navigate", url=url)
        assert "errorText" not in found, f"{url}: {found['errorText']}"
        until(self._has_loaded, f"{url} is loaded")

    def _has_loaded(self) -> bool:
        self.call("Runtime.evaluate", expression="0")  # reads the events that have come
        return self._is_loaded

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, which may be a promise. Fails if it throws."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )  # fmt: skip
        assert "exceptionDetails" not in found, f"{expression}: {_exception(found['exceptionDetails'])}"
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is true, and return its value."""
        return until(lambda: self.evaluate(expression), expression)

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """How large its window is, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=is_phone,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)

    def prefer(self, scheme: str, *, medium: str = "") -> None:
        """The user's colours ("light", "dark"), and the medium: "" is the screen, "print" paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click there with the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key by its name ("Tab"); ``code``: what windows call it (9), ``text``: what it types."""
        values = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **values)
        self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what it looks like as a PNG; ``whole``: with what one would have to scroll to."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """What it prints."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def overflow(self) -> list[str]:
        """What reaches beyond the window's right edge, though nothing around it scrolls."""
        found: list[str] = self.evaluate(_OVERFLOW)
        return found

    def take(self, event: str, values: dict[str, Any]) -> None:
        """Only for the browser: something happened here."""
        if event == "Page.loadEventFired":
            self._is_loaded = True
        elif event == "Runtime.exceptionThrown":
            self.errors.append(_exception(values["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(each.get("value", each)) for each in values["args"]))
        elif event == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent" and not values["request"]["url"].startswith(_INLINE):
            self.requests.append(values["request"]["url"])


_OVERFLOW = """\
(() => {
    const {clientWidth: width, scrollWidth} = document.documentElement;
    const found = scrollWidth > width ? [`the page is ${scrollWidth} wide, of ${width}`] : [];
    const scrolls = (node) => {
        for (let each = node.parentElement; each && each !== document.body; each = each.parentElement)
            if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(each).overflowX)) return true;
        return false;
    };
    for (const node of document.body.querySelectorAll("*")) {
        const box = node.getBoundingClientRect();
        if (box.width && box.right > width + 1 && !scrolls(node))
            found.push(`${node.tagName}.${node.className} ends at ${box.right} of ${width}`);
    }
    return found;
})()
"""


def _exception(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])
