"""Control a real Chromium: load pages, and read their requests, content and layout."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_NOT_INSTALLED = "no Chromium is installed: apt-get install chromium"
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(_CHROMIUM is None, reason=_NOT_INSTALLED)


class NavigatedError(Exception):
    """The page was replaced by another one before it answered."""


class Browser:
    """A page of a Chromium process, which reads commands from a pipe and writes answers and events to another one."""

    def __init__(self, commands: int, answers: int) -> None:
        self.requests: list[str] = []  # addresses of all requests of pages
        self.errors: list[str] = []  # messages of the page's console
        self._commands, self._answers, self._buffer = commands, answers, b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := self._read()).get("id") != self._number:
            pass
        if "navigated" in message.get("error", {}).get("message", ""):
            raise NavigatedError(method)
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        data, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Log.entryAdded":
                self.errors.append(message["params"]["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]))
            case None:
                return message
        self._events.append(message)
        return message

    def open(self, address: str) -> None:
        self._events.clear()
        self.wait_for_load(self.call("Page.navigate", url=address)["loaderId"])

    def wait_for_load(self, loader: str | None = None) -> None:
        """Wait until a page is loaded; *loader* excludes the previous page, which may still refresh itself."""
        while not any(_is_load(event, loader) for event in self._events):
            self._read()
        self._events.clear()

    def value(self, expression: str) -> Any:  # noqa: ANN401 - JSON
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @property
    def location(self) -> str | None:
        """The address of the page, and its loading state; None while another page replaces it."""
        try:
            place: str = self.value("location.href + document.readyState")
        except NavigatedError:
            return None
        return place

    def follow(self, selector: str) -> None:
        self._events.clear()
        # A link in an SVG image has no click().
        click = "dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true, view: window}))"
        self.value(f"document.querySelector({json.dumps(selector)}).{click}")
        self.wait_for_load()

    def drag(self, *points: tuple[float, float]) -> None:
        for number, (x, y) in enumerate(points):
            kind = "mousePressed" if number == 0 else "mouseMoved"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def release(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def drop(self, x: float, y: float) -> None:
        self._events.clear()
        self.release(x, y)
        self.wait_for_load()

    def take_screenshot(self, width: int, *, height: int = 1200, dark: bool = False) -> bytes:
        self.resize(width, height, dark=dark)
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def resize(self, width: int, height: int = 1200, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])


def _is_load(event: dict[str, Any], loader: str | None) -> bool:
    of_page = event.get("params", {})
    is_load = event.get("method") == "Page.lifecycleEvent" and of_page["name"] == "load"
    return is_load and loader in (None, of_page["loaderId"])


@contextmanager
def browser() -> Iterator[Browser]:
    if _CHROMIUM is None:
        raise FileNotFoundError(_NOT_INSTALLED)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (to_read, commands), (answers, to_write) = os.pipe(), os.pipe()
        command = [
            "bash", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}',  # as Chromium expects them
            _CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=null, stderr=null, pass_fds=(to_read, to_write))
        os.close(to_read)
        os.close(to_write)
        try:
            yield Browser(commands, answers)
        finally:
            process.kill()  # its profile is deleted
            process.wait()
            os.close(commands)
            os.close(answers)
