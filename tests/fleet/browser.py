"""A page in headless Chromium, asked with the protocol of its developer tools."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import aiohttp

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*"),
)
ADDRESS = re.compile(rb"DevTools listening on (ws://\S+)")
SECONDS = 120


class Browser:
    """Opens pages."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.loop, self.socket = loop, socket
        self.number = 0
        self.pages: dict[str, Page] = {}  #: by session

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        return self.loop.run_until_complete(asyncio.wait_for(self._call(method, session, params), SECONDS))

    async def _call(self, method: str, session: str | None, params: dict[str, object]) -> dict[str, Any]:
        self.number += 1
        to = {"sessionId": session} if session else {}
        await self.socket.send_json({"id": self.number, "method": method, "params": params, **to})
        while True:
            message = await self.socket.receive_json()
            if message.get("id") == self.number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            if page := self.pages.get(message.get("sessionId", "")):
                page.note(message["method"], message["params"])

    def open(self, path: Path, fragment: str = "") -> Page:
        """Load a page, and wait until its script says that it is ready."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session: str = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(f"{domain}.enable", session)
        self.call("Page.navigate", session, url=f"{path.as_uri()}{fragment}")
        page.run("""new Promise((ready) => {
            const look = () => document.documentElement?.dataset.ready ? ready() : setTimeout(look, 20);
            look();
        })""")
        return page


class Page:
    """A page, and what went wrong in it while it was asked."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session
        self.faults: list[str] = []  #: errors, what the policy has blocked, and what the page asked the network for

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.browser.call("Runtime.evaluate", self.session, expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def note(self, event: str, params: dict[str, Any]) -> None:
        match event:
            case "Runtime.exceptionThrown":
                self.faults.append(str(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.faults.append(params["entry"]["text"])
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "blob:")):
                self.faults.append(params["request"]["url"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Skips the test where there is no Chromium, or not the extra `fleet`."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    pytest.importorskip("aiohttp")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as data,
        subprocess.Popen([chromium, *OPTIONS, f"--user-data-dir={data}"], stderr=subprocess.PIPE) as process,
    ):
        try:
            address = next(match[1].decode() for line in process.stderr or () if (match := ADDRESS.search(line)))
            with asyncio.Runner() as runner:
                session, socket = runner.run(_connected(address))
                try:
                    yield Browser(runner.get_loop(), socket)
                finally:
                    runner.run(_close(socket, session))
        finally:
            process.kill()


async def _connected(address: str) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    import aiohttp  # noqa: PLC0415 - of the extra `fleet`

    session = aiohttp.ClientSession()
    return session, await session.ws_connect(address, max_msg_size=0)


async def _close(socket: aiohttp.ClientWebSocketResponse, session: aiohttp.ClientSession) -> None:
    """The session would leave the connection to a collection, which warns in whatever test runs then."""
    await socket.close()
    await session.close()
