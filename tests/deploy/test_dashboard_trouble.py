"""The dashboard in trouble: late batches, alarms, hostile text, lost servers, another plan."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from support.browser_fixtures import Opener, overflow
from support.scripted_server import FakeServer, estimate, histogram, history, levels, status

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
pytestmark = pytest.mark.browser


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
    expect(alarms).to_contain_text("batches should have arrived and have not")
    server.send("levels", levels(43, late=0))
    expect(health).to_have_text("Healthy")


def test_guarantee_and_trust_are_said_in_words(open_page: Opener, server: FakeServer) -> None:
    weak = {"epsilon": 2.0, "delta": 1e-8, "delta_spent": 9e-9, "honest": 0.8, "reports": 3}
    server.status = status(guarantee=weak)
    said = open_page().text("guarantee")
    for words in (
        "Whatever else anybody knows",
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
    visit.wait_for("fallback", re.compile("^A batch is missing, .* still correct.$"))
    expect(visit.page.locator("#fallback")).to_be_visible()


@pytest.mark.parametrize(
    ("lost", "words"), [(1, "1 user .* counts"), (1234, "1,234 users .* count")]
)
def test_users_who_were_lost_are_counted(
    lost: int, words: str, open_page: Opener, server: FakeServer
) -> None:
    server.status = status(estimate=estimate(fallback=True, lost_users=lost))
    visit = open_page()
    visit.wait_for("fallback", re.compile(f"{words} as the middle of what .* still correct.$"))
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
    visit.wait_for("alarm-list", "The server reports that it is not healthy.")


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
    visit.wait_for(
        "connection-news", re.compile(r"last update ([3-5]\d s|\d min) ago, still trying")
    )
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
    visit.wait_for("connection-news", re.compile("last update [0-5] s ago"))
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
