"""The dashboard in a real browser, before a server that says what the test tells it to.

Every visit ends with the same two questions: did the browser complain, and did the page ask anybody
but its server.
"""

from __future__ import annotations

import json
import math
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from overhand.service import dashboard

CHROMIUM = Path("/usr/bin/chromium")
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
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
PHONES = pytest.mark.parametrize("width", [320, 360])
Json = dict[str, Any]


def levels(published: int = 16, **extra: int) -> list[Json]:
    quiet = {"lost": 0, "own": 0, "garbage": 0}
    lowest = {"level": 1, "size": 43, "batches": 23255, "received": published + 1}
    above = {"level": 2, "size": 1849, "batches": 540, "received": 0, "published": 0}
    return [{**lowest, "published": published, **quiet, **extra}, {**above, **quiet}]


def estimate(t: int = 688, value: Any = 343.2, width: float = 23.1, **extra: Any) -> Json:
    def moved(by: float) -> Any:
        return [each + by for each in value] if isinstance(value, list) else value + by

    band = {"low": moved(-width), "high": moved(width), "std": width / 1.96}
    return {"t": t, "value": value, **band, "fallback": False, **extra}


def status(values: str = "bit", dimension: int = 1, **changed: Any) -> Json:
    plan = {"digest": "5e" * 32, "horizon": 1_000_000, "values": values, "dimension": dimension}
    return {
        "version": "0.1.0",
        "plan": {**plan, "messages_per_user": 12},
        "guarantee": {
            "epsilon": 1.0,
            "delta": 1e-6,
            "delta_spent": 9.71e-7,
            "honest": 1.0,
            "reports": 1,
        },
        "levels": levels(),
        "estimate": estimate(),
        "alarms": [],
        "healthy": True,
        "trust": "The shuffling service alone learns who, never what. The server alone learns what,"
        " never who. Together they learn everything.",
        **changed,
    }


def history(points: int = 16, last: int = 688, slope: float = 0.5, width: float = 23.1) -> Json:
    t = [round(last * (i + 1) / points) for i in range(points)]
    value = [slope * at + width * math.sin(at / last * 20) / 2 for at in t]
    half = [width * (0.4 + 0.6 * at / last) for at in t]
    return {
        "t": t,
        "value": value,
        "low": [each - w for each, w in zip(value, half, strict=True)],
        "high": [each + w for each, w in zip(value, half, strict=True)],
    }


@dataclass
class FakeServer:
    """Serves the package's files, and the JSON and events that the test puts here."""

    status: Json = field(default_factory=status)
    history: Callable[[int], Json] = field(default=lambda coordinate: history())
    mode: str = "up"
    listeners: list[queue.Queue[bytes | None]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def send(self, event: str, data: Any) -> None:
        for listener in self.listeners:
            listener.put(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

    def turn(self, mode: str) -> None:
        """`up`; `gone`: hangs up on everyone; `failing`: 503; `mute`: as gone, but streams stay."""
        self.mode = mode
        if mode in ("gone", "failing"):
            for listener in self.listeners:
                listener.put(None)
            self.listeners.clear()

    def close(self) -> None:
        self.turn("gone")
        self.http.shutdown()
        self.http.server_close()

    def reply(self, path: str, query: dict[str, list[str]]) -> tuple[bytes, str]:
        self.asked.append(path)
        if path == "/v1/status":
            return json.dumps(self.status).encode(), "application/json"
        if path == "/v1/history":
            coordinate = int(query.get("coordinate", ["0"])[0])
            return json.dumps(self.history(coordinate)).encode(), "application/json"
        name = dashboard.PAGE if path == "/" else path.removeprefix("/static/")
        return dashboard.content(name), dashboard.FILES[name]


def handler_of(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if server.mode in ("gone", "mute"):
                self.close_connection = True
            elif server.mode == "failing":
                self.answer(503, b"", "text/plain")
            elif parts.path == "/v1/events":
                self.stream()
            else:
                try:
                    self.answer(200, *server.reply(parts.path, parse_qs(parts.query)))
                except KeyError:
                    self.answer(404, b"", "text/plain")

        def answer(self, code: int, body: bytes, media_type: str) -> None:
            self.send_response(code)
            for name, value in dashboard.HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self) -> None:
            listener: queue.Queue[bytes | None] = queue.Queue()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b": hello\n\n")
            server.listeners.append(listener)
            try:
                while (news := listener.get()) is not None:
                    self.wfile.write(news)
            except OSError:
                server.listeners.remove(listener)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


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

    def wait_for(self, name: str, text: str | re.Pattern[str], seconds: float = 10) -> None:
        expect(self.page.locator(f"#{name}")).to_have_text(text, timeout=1000 * seconds)

    def points(self) -> int:
        return int(self.page.locator("#chart").get_attribute("data-points") or 0)

    def number_of(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def wait_for_number_of(self, selector: str, number: int) -> None:
        expect(self.page.locator(selector)).to_have_count(number)


pytestmark = pytest.mark.browser


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
        visit = Visit(page, server)
        visits.append(visit)
        page.on("request", lambda request: visit.hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("console", visit.overhear)
        if clock:
            page.clock.install()
        page.goto(server.url)
        visit.wait_for("connection-state", "Live")
        return visit

    yield open_it
    for visit in visits:
        visit.page.context.close()
        assert visit.complaints == []
        assert visit.hosts == {urlsplit(server.url).netloc}


def histogram(buckets: int) -> tuple[Json, Callable[[int], Json]]:
    value = [1000.0 * (1 + math.sin(i)) - 40 for i in range(buckets)]
    return (
        status(f"histogram:{buckets}", buckets, estimate=estimate(t=4000, value=value, width=90.0)),
        lambda i: history(20, last=4000, slope=value[i] / 4000, width=90.0),
    )


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def test_the_list_of_files_is_what_the_package_holds() -> None:
    folder = Path(dashboard.__file__).parent
    there = {path.name for path in folder.iterdir() if path.suffix not in (".py", "")}
    assert set(dashboard.FILES) == there
    assert all(dashboard.content(name) for name in dashboard.FILES)


@pytest.mark.parametrize("name", sorted(dashboard.FILES))
def test_nothing_is_inline_or_from_elsewhere(name: str) -> None:
    text = dashboard.content(name).decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//cdn|innerHTML|insertAdjacentHTML|document\.write", text)
    assert not re.search(r"\bstyle=|<style|\son[a-z]+=|<script(?![^>]*\bsrc=)|@import|eval\(", text)


def test_number_and_band_appear_and_follow_the_events(
    open_page: Opener, server: FakeServer
) -> None:
    visit = open_page()
    visit.wait_for("number", "343")
    visit.wait_for("band", "320 to 366 with 95 % confidence")
    visit.wait_for("users", "688 of 1,000,000 users")
    visit.wait_for("title", "Running count")
    visit.wait_for("announcement", "343, 320 to 366, after 688 users")
    assert visit.points() == 16
    server.send("estimate", estimate(t=731, value=1364.8))
    visit.wait_for("number", "1,365")
    visit.wait_for("band", "1,342 to 1,388 with 95 % confidence")
    visit.wait_for("users", "731 of 1,000,000 users")
    assert visit.points() == 17
    assert visit.page.title() == "1,365 · overhand"


def test_an_older_estimate_changes_nothing_and_the_same_user_replaces(
    open_page: Opener, server: FakeServer
) -> None:
    visit = open_page()
    server.send("estimate", estimate(t=688, value=350.0, width=5.0))
    visit.wait_for("number", "350.0")
    server.send("estimate", estimate(t=645, value=1.0))
    server.send("levels", levels(77))
    expect(visit.page.locator("#level-rows")).to_contain_text("77 of 23,255")
    visit.wait_for("number", "350.0")
    assert visit.points() == 16


def test_without_an_estimate_it_says_what_it_waits_for(
    open_page: Opener, server: FakeServer
) -> None:
    server.status = status(estimate=None, levels=levels(0))
    server.history = lambda coordinate: {"t": [], "value": [], "low": [], "high": []}
    visit = open_page()
    visit.wait_for("band", "Waiting for the first batch of 43 users.")
    visit.wait_for("users", "0 of 1,000,000 users")
    expect(visit.page.locator("#chart svg text")).to_have_text("No estimate yet")
    server.send("estimate", estimate(t=43, value=20.0))
    visit.wait_for("number", "20")
    visit.wait_for_number_of("#chart .alone", 1)
    assert visit.number_of("#chart .curve") == 0


def test_the_chart_is_painted_with_its_band(open_page: Opener) -> None:
    visit = open_page()
    visit.wait_for_number_of("#chart .area", 1)
    curve = visit.page.locator("#chart .curve").get_attribute("d") or ""
    assert len(re.findall(r"[ML]", curve)) == 16
    # Hit, not only present: the browser itself says that the band is what is seen there.
    painted = visit.page.evaluate(
        """() => {
            const band = document.querySelector("#chart .area"), box = band.getBoundingClientRect();
            let hits = 0;
            for (let y = box.top; y < box.bottom; y += 2)
                hits += document.elementFromPoint(box.left + box.width / 2, y) === band;
            return [hits, box.width, getComputedStyle(band).fill];
        }"""
    )
    assert painted[0] > 3
    assert painted[1] > 300
    assert painted[2].startswith("rgba(23, 105, 170")
    labels = visit.page.locator("#chart svg text").all_text_contents()
    assert {"0", "100", "200", "300", "0 users", "400", "600"} <= set(labels)


def test_a_gap_stays_a_gap(open_page: Opener, server: FakeServer) -> None:
    gapped = history(20)
    for column in ("value", "low", "high"):
        gapped[column][9] = None
    server.history = lambda coordinate: gapped
    visit = open_page()
    visit.wait_for_number_of("#chart .curve", 2)
    visit.wait_for_number_of("#chart .area", 2)


def test_the_chart_is_read_by_mouse_and_by_keys(open_page: Opener) -> None:
    visit = open_page()
    visit.wait_for("chart-reading", re.compile("Point at the chart"))
    visit.page.locator("#chart").hover(position={"x": 60, "y": 100})
    visit.wait_for("chart-reading", re.compile(r"^After 43 users: [\d.]+ \(.+ to .+\)$"))
    assert visit.number_of("#chart .cursor") == 1
    visit.page.locator("#chart").focus()
    visit.page.keyboard.press("End")
    visit.wait_for("chart-reading", re.compile("^After 688 users: 343"))
    visit.page.keyboard.press("ArrowLeft")
    visit.wait_for("chart-reading", re.compile("^After 645 users"))
    spoken = visit.page.locator("#chart").get_attribute("aria-valuetext") or ""
    assert spoken.startswith("After 645 users")
    visit.page.keyboard.press("Escape")
    visit.wait_for_number_of("#chart .cursor", 0)


def test_the_mean_is_the_sum_over_the_users(open_page: Opener) -> None:
    visit = open_page()
    visit.page.get_by_role("radio", name="Per user").check()
    visit.page.locator("#chart").focus()
    visit.page.keyboard.press("End")
    visit.wait_for("chart-reading", "After 688 users: 0.499 (0.465 to 0.532)")


def test_a_histogram_has_a_bar_and_an_error_bar_for_every_bucket(
    open_page: Opener, server: FakeServer
) -> None:
    server.status, server.history = histogram(5)
    visit = open_page()
    visit.wait_for("title", "Running histogram")
    visit.wait_for_number_of("#bars .bar", 5)
    assert visit.number_of("#bars .whisker") == 5
    visit.wait_for("number", "960")
    box = visit.page.locator("#bars .bar").nth(2).bounding_box()
    assert box is not None
    assert box["height"] > 50
    visit.page.locator("#bars .bar").nth(2).click()
    visit.wait_for("number", "1,869")
    assert visit.page.locator("#coordinate-list").input_value() == "2"
    visit.wait_for("bars-reading", "Bucket 2: 1,869 (1,779 to 1,959)")


def test_a_coordinate_is_chosen_with_its_own_history(open_page: Opener, server: FakeServer) -> None:
    server.status = status("vector:20", 20, estimate=estimate(value=[10.0 * i for i in range(20)]))
    server.history = lambda coordinate: history(3 + coordinate)
    visit = open_page()
    visit.wait_for("number", "0")
    visit.page.locator("#coordinate-list").select_option("7")
    visit.wait_for("number", "70")
    expect(visit.page.locator("#chart")).to_have_attribute("data-points", "10")
    assert visit.page.locator("#bars-card").is_hidden()
    server.send("estimate", estimate(t=900, value=[20.0 * i for i in range(20)]))
    visit.wait_for("number", "140")
    expect(visit.page.locator("#chart")).to_have_attribute("data-points", "11")


def test_a_late_history_of_another_coordinate_is_not_shown(
    open_page: Opener, server: FakeServer
) -> None:
    server.status = status("vector:20", 20, estimate=estimate(value=[10.0 * i for i in range(20)]))
    go_on = threading.Event()

    def late_for_seven(coordinate: int) -> Json:
        if coordinate == 7:
            go_on.wait(10)
        return history(3 + coordinate)

    server.history = late_for_seven
    visit = open_page()
    visit.page.locator("#coordinate-list").select_option("7")
    visit.page.locator("#coordinate-list").select_option("2")
    expect(visit.page.locator("#chart")).to_have_attribute("data-points", "5")
    with visit.page.expect_response("**/v1/history?coordinate=7"):
        go_on.set()
    visit.page.wait_for_timeout(100)
    assert visit.points() == 5


def test_a_large_histogram_is_chosen_by_number(open_page: Opener, server: FakeServer) -> None:
    server.status, server.history = histogram(5000)
    visit = open_page()
    number = visit.page.locator("#coordinate-number")
    number.fill("4999")
    number.press("Enter")
    visit.wait_for("announcement", re.compile("^Bucket 4999: "))
    number.fill("5000")
    number.press("Enter")
    expect(number).to_have_value("4999")
    assert visit.page.locator("#bars-card").is_hidden()


def test_levels_show_trouble_only_if_there_is_any(open_page: Opener, server: FakeServer) -> None:
    visit = open_page()
    rows = visit.page.locator("#level-rows tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("16 of 23,255")
    expect(rows.nth(0)).to_contain_text("1 batch being opened")
    expect(rows.nth(1)).to_have_text("21,8490 of 540")
    server.send("levels", levels(40, lost=2, own=3, garbage=1))
    for words in ("40 of 23,255", "2 batches lost", "3 reports of value 0", "1 message unreadable"):
        expect(rows.nth(0)).to_contain_text(words)
    expect(rows.nth(0)).not_to_contain_text("late")
    assert rows.nth(0).locator("progress").evaluate("bar => bar.value / bar.max") == 40 / 23255


def test_late_batches_need_attention_until_they_come(open_page: Opener, server: FakeServer) -> None:
    visit = open_page()
    health, alarms = visit.page.locator("#health"), visit.page.locator("#alarm-list")
    expect(health).to_have_text("Healthy")
    server.send("levels", levels(40, late=3))
    expect(visit.page.locator("#level-rows tr").nth(0)).to_contain_text("3 batches late")
    expect(health).to_have_text("Needs attention")
    expect(alarms).to_contain_text("batches should be here and are not")
    server.send("levels", levels(43, late=0))
    expect(health).to_have_text("Healthy")


def test_guarantee_and_trust_are_said_in_words(open_page: Opener, server: FakeServer) -> None:
    weak = {"epsilon": 2.0, "delta": 1e-8, "delta_spent": 9e-9, "honest": 0.8, "reports": 3}
    server.status = status(guarantee=weak)
    said = open_page().text("guarantee")
    for words in (
        "Whatever anybody else knows",
        "7.389 times as likely (epsilon 2)",
        "1 in 100,000,000 (delta 1e-8)",
        "spends a delta of 9e-9",
        "at least 80 % of the users",
        "up to 3 reports",
    ):
        assert words in said


def test_trust_and_fallback_are_visible(open_page: Opener, server: FakeServer) -> None:
    visit = open_page()
    assert "Together they learn everything" in visit.text("trust")
    assert visit.page.locator("#fallback").is_hidden()
    server.send("estimate", estimate(t=700, fallback=True))
    expect(visit.page.locator("#fallback")).to_be_visible()


def test_alarms_come_live_and_go_when_the_server_says_so(
    open_page: Opener, server: FakeServer
) -> None:
    visit = open_page(clock=True)
    assert visit.page.locator("#alarms").is_hidden()
    visit.wait_for("health", "Healthy")
    server.send("alarm", "level 2 is late")
    server.send("alarm", "batch 7 came twice, with other bytes")
    expect(visit.page.locator("#alarm-list li")).to_have_text(
        ["batch 7 came twice, with other bytes", "level 2 is late"]
    )
    visit.wait_for("health", "Needs attention")
    visit.page.clock.fast_forward(61_000)
    expect(visit.page.locator("#alarms")).to_be_hidden()
    visit.wait_for("health", "Healthy")


def test_an_unhealthy_server_without_an_alarm_is_shown(
    open_page: Opener, server: FakeServer
) -> None:
    server.status = status(healthy=False)
    visit = open_page()
    visit.wait_for("alarm-list", "The server says that it is not healthy.")


def test_hostile_text_is_shown_as_text(open_page: Opener, server: FakeServer) -> None:
    server.status = status(HOSTILE, alarms=[HOSTILE], trust=HOSTILE, version=HOSTILE)
    visit = open_page()
    server.send("alarm", HOSTILE + "2")
    expect(visit.page.locator("#alarm-list li")).to_have_text([HOSTILE + "2", HOSTILE])
    assert visit.text("trust") == HOSTILE
    assert HOSTILE in visit.text("plan")
    assert visit.number_of("body script, main img, section img") == 0
    assert overflow(visit.page) <= 0
    assert visit.page.title() == "343 · overhand"


@pytest.mark.parametrize("mode", ["gone", "failing"])
def test_a_lost_server_is_waited_for(mode: str, open_page: Opener, server: FakeServer) -> None:
    visit = open_page(clock=True)
    server.turn(mode)
    visit.wait_for("connection-state", "Reconnecting")
    visit.page.clock.fast_forward(31_000)
    visit.wait_for("connection-state", "Server gone")
    visit.wait_for("connection-news", re.compile(r"last news 3\d s ago, still trying"))
    visit.wait_for("number", "343")
    server.status = status(estimate=estimate(t=9000, value=4500.0))
    server.turn("up")
    visit.page.clock.fast_forward(16_000)
    visit.wait_for("connection-state", "Live")
    visit.wait_for("number", "4,500")
    server.send("estimate", estimate(t=9001, value=5000.0))
    visit.wait_for("number", "5,000")
    assert all("Failed to load resource" in each for each in visit.complaints)
    visit.complaints.clear()


def test_a_line_that_went_dead_is_noticed(open_page: Opener, server: FakeServer) -> None:
    visit = open_page(clock=True)
    server.turn("mute")
    visit.page.clock.fast_forward(32_000)
    visit.wait_for("connection-state", "Reconnecting")
    assert all("Failed to load resource" in each for each in visit.complaints)
    visit.complaints.clear()


def test_a_quiet_line_is_asked_and_stays_live(open_page: Opener, server: FakeServer) -> None:
    visit = open_page(clock=True)
    before = server.asked.count("/v1/status")
    with visit.page.expect_response("**/v1/history*"):
        visit.page.clock.fast_forward(32_000)
    assert server.asked.count("/v1/status") > before
    visit.wait_for("connection-news", re.compile("last news [0-5] s ago"))
    visit.wait_for("connection-state", "Live")


def test_another_plan_starts_over(open_page: Opener, server: FakeServer) -> None:
    server.status, server.history = histogram(5)
    visit = open_page(clock=True)
    visit.page.locator("#coordinate-list").select_option("4")
    server.status, server.history = status(), lambda coordinate: history()
    server.status["plan"]["digest"] = "aa" * 32
    visit.page.clock.fast_forward(61_000)
    visit.wait_for("title", "Running count")
    visit.wait_for("number", "343")
    assert visit.page.locator("#coordinate-choice").is_hidden()
    assert visit.page.locator("#bars-card").is_hidden()


@PHONES
@pytest.mark.parametrize("case", ["count", "histogram", "billions"])
def test_a_phone_needs_no_sideways_scrolling(
    width: int, case: str, open_page: Opener, server: FakeServer
) -> None:
    if case == "histogram":
        server.status, server.history = histogram(40)
        server.status["levels"] = levels(23255, lost=12, own=4321, garbage=99)
    if case == "billions":
        huge = estimate(t=987_654_321, value=-9_876_543_210.987, width=0.123)
        server.status = status("real", estimate=huge, alarms=["x" * 400], healthy=False)
        server.status["plan"]["horizon"] = 10**10
        server.history = lambda coordinate: history(50, last=987_654_321, slope=-10.0)
    visit = open_page(
        viewport={"width": width, "height": 740},
        device_scale_factor=3,
        is_mobile=True,
        has_touch=True,
    )
    visit.wait_for("connection-state", "Live")
    visit.page.locator("#chart").tap(position={"x": width / 2, "y": 60})
    visit.wait_for("chart-reading", re.compile("^After "))
    assert visit.page.evaluate("innerWidth") == width
    assert overflow(visit.page) <= 0
    cut = """() => [...document.querySelectorAll(".plot text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < 0 || box.right > innerWidth;
    }).length"""
    assert visit.page.evaluate(cut) == 0


def test_the_charts_follow_the_width(open_page: Opener) -> None:
    visit = open_page(viewport={"width": 1200, "height": 800})

    def painted() -> float:
        return float(visit.page.evaluate("document.querySelector('#chart .area').getBBox().width"))

    wide = painted()
    visit.page.set_viewport_size({"width": 400, "height": 800})
    visit.page.wait_for_function(
        f"document.querySelector('#chart .area').getBBox().width < {wide / 2}"
    )
    assert overflow(visit.page) <= 0


CONTRASTS = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = numbers(colour).map((c) =>
            c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const under = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if ((numbers(colour)[3] ?? 1) === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    return [...document.querySelectorAll("body *")]
        .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
            && e.checkVisibility() && !e.closest("option, noscript"))
        .map((e) => {
            const style = getComputedStyle(e);
            const text = light(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
            const ground = light(under(e));
            const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
            return [e.id || e.className.baseVal || e.className || e.tagName, ratio];
        });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(
    scheme: str, open_page: Opener, server: FakeServer
) -> None:
    server.status, server.history = histogram(5)
    server.status.update(alarms=["late"], levels=levels(lost=1))
    server.status["estimate"]["fallback"] = True
    visit = open_page(color_scheme=scheme)
    visit.wait_for_number_of("#bars .bar", 5)
    visit.wait_for_number_of("#alarm-list li", 1)
    page_colour = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page_colour == {"light": "rgb(244, 246, 248)", "dark": "rgb(16, 21, 27)"}[scheme]
    ratios = visit.page.evaluate(CONTRASTS)
    assert len(ratios) > 40
    assert [(name, ratio) for name, ratio in ratios if ratio < 4.5] == []


def test_everything_to_operate_has_a_name(open_page: Opener, server: FakeServer) -> None:
    server.status, server.history = histogram(5)
    visit = open_page()
    visit.wait_for_number_of("#bars .bar", 5)
    for role, name in [
        ("heading", "Running histogram"),
        ("combobox", "Bucket"),
        ("radio", "Sum"),
        ("radio", "Per user"),
        ("slider", "The running estimate, read at a number of users"),
        ("img", re.compile("Bar chart of 5 buckets; largest: bucket 2")),
        ("progressbar", "Level 1"),
        ("progressbar", "4,000 of 1,000,000 users"),
    ]:
        expect(visit.page.get_by_role(role, name=name)).to_have_count(1)  # type: ignore[arg-type]
    reached = []
    for _ in range(4):
        visit.page.keyboard.press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.id"))
    assert reached[0] == "coordinate-list"
    assert "chart" in reached


def test_five_hundred_points_and_a_burst_of_news_stay_responsive(
    open_page: Opener, server: FakeServer
) -> None:
    server.history = lambda coordinate: history(500, last=100_000)
    visit = open_page()
    assert visit.points() == 500
    visit.page.evaluate(
        """() => {
            globalThis.frames_ = 0;
            const count = () => { globalThis.frames_ += 1; requestAnimationFrame(count); };
            requestAnimationFrame(count);
        }"""
    )
    for i in range(1000):
        server.send("estimate", estimate(t=100_001 + i, value=50_000.0 + i))
        server.send("levels", levels(17 + i))
    visit.wait_for("number", "50,999", seconds=5)
    assert visit.points() == 500
    drawn_before = visit.page.evaluate("frames_")
    visit.page.wait_for_timeout(500)
    assert visit.page.evaluate("frames_") - drawn_before >= 5
