"""Remote control of a real Chromium: loaded resources, content and layout of pages."""

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.support.waiting import wait_until

_NONE = "no Chromium is installed: apt-get install chromium"
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(_CHROMIUM is None, reason=_NONE)
_LOADED = 240.0  # seconds of a busy machine


class NavigatedError(Exception):
    """The page was replaced by another one before it answered."""


class Browser:
    """One page of a Chromium."""

    def __init__(self, address: str) -> None:
        self.requests: list[str] = []  # the address of everything that pages wanted
        self.errors: list[str] = []  # what the page's console says
        self._loop = asyncio.new_event_loop()
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._socket: WebSocketClientConnection = self._loop.run_until_complete(_connected(address))
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._loop.run_until_complete(self._call(method, parameters))

    async def _call(self, method: str, parameters: dict[str, object]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = await self._read()
            if message.get("id") == number:
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise NavigatedError(method)
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def _read(self) -> dict[str, Any]:
        data = await asyncio.wait_for(self._socket.read_message(), _LOADED)
        assert data is not None
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
        """Wait until a page is there: the one of a loader, for the page before may still lead on by a refresh."""
        self._loop.run_until_complete(self._loaded(loader))

    async def _loaded(self, loader: str | None) -> None:
        while not any(_is_load(event, loader) for event in self._events):
            await self._read()
        self._events.clear()

    def value(self, expression: str) -> Any:  # noqa: ANN401 - JSON
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    @property
    def place(self) -> str | None:
        """The address of the page, and how far it is loaded; None while another page takes its place."""
        try:
            place: str = self.value("location.href + document.readyState")
        except NavigatedError:
            return None
        return place

    def follow(self, selector: str) -> None:
        self._events.clear()
        # A link in a drawing has no click() of its own.
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

    def look(self, width: int, *, height: int = 1200, dark: bool = False) -> bytes:
        self.resize(width, height, dark=dark)
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def resize(self, width: int, height: int = 1200, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def close(self) -> None:
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._socket.close()  # which makes a future of the running loop
        await asyncio.sleep(0)


def _is_load(event: dict[str, Any], loader: str | None) -> bool:
    of_page = event.get("params", {})
    is_load = event.get("method") == "Page.lifecycleEvent" and of_page["name"] == "load"
    return is_load and loader in (None, of_page["loaderId"])


async def _connected(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address, max_message_size=1 << 28)


@contextmanager
def browser() -> Iterator[Browser]:
    if _CHROMIUM is None:
        raise FileNotFoundError(_NONE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            _CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
            "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
            f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            wait_until(
                lambda: port_file.exists() and len(port_file.read_text().split()) == 2, lambda: "Chromium has no port"
            )
            port = port_file.read_text().split()[0]
            page = Browser(wait_until(lambda: _page_address(port), lambda: "Chromium has no page"))
            try:
                yield page
            finally:
                page.close()
        finally:
            process.kill()  # nothing of it is kept
            process.wait()


def _page_address(port: str) -> str | None:
    """Return the address of the browser's first page; None while it has no page yet."""
    with urlopen(f"http://127.0.0.1:{port}/json", timeout=_LOADED) as answer:
        pages = json.load(answer)
    return next((page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page"), None)
