"""The dashboard of a recommender in a real browser: mean reward, what was learnt, and the arms."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

import overhand as oh
from overhand.deploy.server.policy import PolicyMaker
from overhand.deploy.server.store import Coordinate
from support.browser_fixtures import Opener, overflow
from support.scripted_server import FakeServer, Json, estimate, status
from support.vector_recommender import POLICY_KEY, recommenders

pytestmark = pytest.mark.browser
BATCH = 43


def learnt(number: int, *, constant: bool = True) -> Json:
    """After so many batches: the reward rises, and so does what is expected of jazz."""
    t = [BATCH * (i + 1) for i in range(number)] if constant else []
    value = [0.5 + 0.05 * i for i in range(len(t))]
    band = {"low": [x - 0.04 for x in value], "high": [x + 0.04 for x in value]}
    theta = {"always": 0.1, "jazz": 0.05 * number, "<b>late</b>": -0.2}
    shown = [
        {"feature": name, "value": x, "low": x - 0.1, "high": x + 0.1} for name, x in theta.items()
    ]
    best = [("a jazz club", 0.4 + 0.1 * number, 0.01), ("a walk", 0.45, 0.125)]
    ranked = sorted(best, key=lambda arm: -(arm[1] + arm[2]))
    return {
        "policy": {"number": number, "users": BATCH * number},
        "reward": {"t": t, "value": value, **band},
        "coefficients": shown,
        "arms": [{"arm": a, "expected": e, "bonus": b} for a, e, b in ranked],
    }


def recommending(server: FakeServer, answer: Json) -> None:
    server.learnt = answer
    moments = estimate(t=BATCH * 2, value=[1.0] * 9)
    server.status = status("regression:3", 9, estimate=moments)
    server.status["plan"]["is_recommender"] = True


def arms(visit: Any) -> list[list[str]]:
    rows = visit.page.locator("#arm-rows tr").all()
    return [row.locator("td, th").all_inner_texts() for row in rows]


def test_reward_theta_and_arms_are_shown_and_move_with_a_new_policy(
    open_page: Opener, server: FakeServer
) -> None:
    recommending(server, learnt(2))
    visit = open_page()
    visit.wait_for("title", "Mean reward so far")
    visit.wait_for("number", "0.550")
    visit.wait_for("band", "0.510 to 0.590 with 95 % confidence")
    visit.wait_for("announcement", "Mean reward: 0.550, 0.510 to 0.590, after 86 users")
    visit.wait_for("reward-how", re.compile("first coordinate of the private sum of x y counts"))
    visit.wait_for("learnt-policy", "Policy 2, learnt from 86 users.")
    visit.wait_for_number_of("#theta .bar", 3)
    visit.wait_for_number_of("#theta .whisker", 3)
    expect(visit.page.locator("#guarantee")).to_contain_text("visibly takes is not protected")
    assert arms(visit) == [
        ["1", "a jazz club", "0.600", "0.010", "0.610"],
        ["2", "a walk", "0.450", "0.125", "0.575"],
    ]
    jazz = visit.page.locator("#theta .bar").nth(1)
    before, curve = jazz.get_attribute("y"), visit.page.locator("#chart .curve").get_attribute("d")
    assert visit.points() == 2
    server.learnt = learnt(3)
    server.send("estimate", estimate(t=BATCH * 3, value=[2.0] * 9))
    visit.wait_for("learnt-policy", "Policy 3, learnt from 129 users.")
    visit.wait_for("number", "0.600")
    assert visit.points() == 3
    assert jazz.get_attribute("y") != before
    assert visit.page.locator("#chart .curve").get_attribute("d") != curve
    assert "/v1/history" not in server.asked


def test_it_is_read_without_a_mouse_and_has_no_controls_of_sums(
    open_page: Opener, server: FakeServer
) -> None:
    recommending(server, learnt(2))
    visit = open_page(viewport={"width": 320, "height": 740})
    visit.wait_for_number_of("#theta .bar", 3)
    for control in ("coordinate-choice", "view-choice", "hindsight-choice", "bars-card"):
        assert visit.page.locator(f"#{control}").is_hidden()
    said = visit.page.locator("#theta").get_attribute("aria-label") or ""
    assert "jazz: 0.10 (0.00 to 0.20)" in said
    assert "<b>late</b>: -0.20" in said
    visit.page.locator("#chart").focus()
    visit.page.keyboard.press("End")
    visit.wait_for("chart-reading", "After 86 users: 0.550 (0.510 to 0.590)")
    assert overflow(visit.page) <= 0


def test_what_a_server_answers_is_what_the_page_reads(
    open_page: Opener, server: FakeServer
) -> None:
    """Not made up here: the arms of a document, and names that are numbers."""
    document = recommenders()["pairs"]
    maker = PolicyMaker.of(document, POLICY_KEY)
    assert maker is not None
    total = [20.0, 5.0, 0.0, 25.0, 0.0, 0.0, 40.0, 0.0, 35.0]
    latest = oh.Estimate(100, np.array(total), std=2.0)
    point = Coordinate(100, value=20.0, low=16.0, high=24.0)
    recommending(server, maker.lessons(maker.make_policy(4, latest), [point], [100], latest))
    visit = open_page()
    visit.wait_for("number", "0.700")  # the constant is made 1/2: 1/2 + 20 / (2 x 100 x 1/2)
    visit.wait_for("learnt-policy", "Policy 4, learnt from 100 users.")
    visit.wait_for_number_of("#theta .whisker", 3)
    assert sorted(row[1] for row in arms(visit)) == ["1984", "42", "a walk"]
    labels = visit.page.locator("#theta text[text-anchor=middle]").all_text_contents()
    assert labels == ["always", "jazz", "Übermut"]


def test_without_a_constant_feature_no_mean_reward_is_told(
    open_page: Opener, server: FakeServer
) -> None:
    recommending(server, learnt(2, constant=False))
    visit = open_page()
    visit.wait_for("band", re.compile("moments do not tell the mean reward"))
    visit.wait_for("number", "–")
    visit.wait_for("learnt-policy", "Policy 2, learnt from 86 users.")


def test_news_are_asked_for_once_a_second_at_most(open_page: Opener, server: FakeServer) -> None:
    recommending(server, learnt(2))
    visit = open_page(clock=True)
    visit.wait_for("learnt-policy", "Policy 2, learnt from 86 users.")
    asked, since = (
        server.asked.count("/v1/policy/summary"),
        visit.page.evaluate("performance.now()"),
    )
    server.learnt = learnt(9)
    for batch in range(3, 10):
        server.send("estimate", estimate(t=BATCH * batch, value=[2.0] * 9))
    visit.wait_for("users", "387 of 1,000,000 users")
    visit.page.clock.run_for(1500)
    visit.wait_for("learnt-policy", "Policy 9, learnt from 387 users.")
    seconds = (visit.page.evaluate("performance.now()") - since) / 1000  # by the page's clock
    assert server.asked.count("/v1/policy/summary") <= asked + 1 + seconds


def test_a_sum_shows_nothing_of_a_recommender(open_page: Opener, server: FakeServer) -> None:
    visit = open_page()
    visit.wait_for("number", "343")
    for card in ("learnt-card", "arms-card", "reward-how"):
        assert visit.page.locator(f"#{card}").is_hidden()
    assert "/v1/policy/summary" not in server.asked
