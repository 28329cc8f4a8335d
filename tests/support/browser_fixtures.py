"""Fixtures of the tests of the dashboard: a real browser, and a server that tests put words into.

Every visit ends with the same two questions: did the browser complain, and did the page ask anybody
but its server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from support.scripted_server import FakeServer

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE = 60_000  # milliseconds: on a machine that does much else a page takes its time
expect.set_options(timeout=PATIENCE)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Visit:
    """A page that was opened, and what the browser had to say about it."""

    page: Page
    server: FakeServer
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def overhear(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(said.text)

    def text(self, name: str) -> str:
        return self.page.locator(f"#{name}").inner_text()

    def wait_for(self, name: str, text: str | re.Pattern[str]) -> None:
        expect(self.page.locator(f"#{name}")).to_have_text(text)

    def wait_for_a_frame(self) -> None:
        """What the page was told is drawn with the next one."""
        self.page.evaluate("() => new Promise((drawn) => requestAnimationFrame(drawn))")

    def points(self) -> int:
        return int(self.page.locator("#chart").get_attribute("data-points") or 0)

    def number_of(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def wait_for_number_of(self, selector: str, number: int) -> None:
        expect(self.page.locator(selector)).to_have_count(number)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.fail(f"no {CHROMIUM}: the dashboard's tests need `apt-get install -y chromium`")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


Opener = Callable[..., Visit]


@pytest.fixture
def open_page(browser: Browser, server: FakeServer) -> Iterator[Opener]:
    """Opens the page and waits until it is live; in the end it must have been quiet and alone."""
    visits = []

    def open_it(*, clock: bool = False, **options: Any) -> Visit:
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(PATIENCE)
        visit = Visit(page, server)
        visits.append(visit)
        page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("console", visit.overhear)
        if clock:
            page.clock.install()
        page.goto(server.url)
        visit.wait_for("connection-state", "Live")
        visit.wait_for_a_frame()
        return visit

    yield open_it
    for visit in visits:
        visit.page.context.close()
        assert visit.complaints == []
        assert visit.hosts == {urlsplit(server.url).netloc}


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))
