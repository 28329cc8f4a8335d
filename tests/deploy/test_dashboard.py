"""The dashboard in a real browser: numbers, charts and coordinates."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect

from overhand.deploy.server import dashboard
from support.browser_fixtures import Opener
from support.scripted_server import FakeServer, Json, estimate, histogram, history, levels, status

pytestmark = pytest.mark.browser


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


def test_a_sum_that_goes_on_says_how_many_were_before(
    open_page: Opener, server: FakeServer
) -> None:
    server.status["plan"]["users_before"] = 600
    visit = open_page()
    visit.wait_for("users", "88 of 1,000,000 users, after 600 in earlier plans")
    first = visit.page.locator("#chart text", has_text="users").first
    expect(first).to_have_text(re.compile(r"^6\d\d users$"))


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


def test_bars_have_the_names_of_their_buckets_as_text(
    open_page: Opener, server: FakeServer
) -> None:
    server.status, server.history = histogram(3)
    plan = {"values": "histogram:like,<b>love</b>,wow", "names": ["like", "<b>love</b>", "wow"]}
    server.status["plan"] |= plan
    visit = open_page()
    visit.wait_for("title", "Running histogram")
    visit.wait_for_number_of("#bars .bar", 3)
    labels = visit.page.locator("#bars text[text-anchor=middle]").all_text_contents()
    assert labels == ["like", "<b>love</b>", "wow"]
    summary = visit.page.locator("#bars").get_attribute("aria-label")
    assert summary == "Bar chart of 3 buckets; largest: wow."
    assert visit.page.locator("#coordinate-list option").all_text_contents() == labels
    visit.page.locator("#bars .bar").nth(1).click()
    visit.wait_for("bars-reading", "<b>love</b>: 1,801 (1,711 to 1,891)")
    visit.wait_for("number", "1,801")
    assert visit.page.title().startswith("<b>love</b>: 1,801")


def group(label: str, count: float, mean: float | None) -> Json:
    def bounded(value: float | None) -> dict[str, float] | None:
        return None if value is None else {"value": value, "low": value - 1, "high": value + 1}

    note = f"no mean: {label} may have no users at all" if mean is None else ""
    numbers = {"count": bounded(count), "sum": bounded(0.0), "mean": bounded(mean)}
    return {"label": label, **numbers, "note": note}


def test_groups_have_their_users_and_means_in_a_table(
    open_page: Opener, server: FakeServer
) -> None:
    server.status, server.history = histogram(4)
    server.status["plan"] |= {"values": "grouped:<b>DE</b>,FR", "names": list("abcd")}
    server.groups = {"t": 4000, "groups": [group("<b>DE</b>", 500, 40), group("FR", 1, None)]}
    visit = open_page()
    visit.wait_for_number_of("#group-rows tr", 2)
    rows = visit.page.locator("#group-rows tr")
    assert rows.nth(0).locator("th, td").all_text_contents() == [
        "<b>DE</b>",
        "500.0 (499.0 to 501.0)",
        "40.0 (39.0 to 41.0)",
    ]
    assert rows.nth(1).locator("td").nth(1).text_content() == server.groups["groups"][1]["note"]
    server.groups = {"t": 4043, "groups": [group("<b>DE</b>", 530, 41), group("FR", 9, 3)]}
    server.send("estimate", estimate(t=4043, value=[2.0] * 4))
    visit.wait_for("bars-title", "All cells")
    visit.wait_for("groups-note", re.compile("^After 4,043 users"))
    assert rows.nth(1).locator("td").nth(1).text_content() == "3.0 (2.0 to 4.0)"


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
            go_on.wait(60)
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


def test_hindsight_is_a_second_line_that_is_switched_on(
    open_page: Opener, server: FakeServer
) -> None:
    """What was published stays where it is; nobody asks for the other before it is wanted."""
    told = history(16)
    told["value"] = [value + 10 for value in told["value"]]
    server.hindsight = lambda coordinate: {**told, "ratio": 0.75}
    visit = open_page()
    visit.wait_for_number_of("#chart .curve", 1)
    published = visit.page.locator("#chart .curve").get_attribute("d")
    assert "/v1/hindsight" not in server.asked
    switch = visit.page.get_by_role("checkbox", name="in hindsight")
    switch.check()
    visit.wait_for_number_of("#chart .curve.told", 1)
    line = visit.page.locator("#chart .curve.told").get_attribute("d") or ""
    assert len(re.findall(r"[ML]", line)) == 16
    visit.wait_for("hindsight-gain", ": 75\u00a0% of the published error")
    visit.page.locator("#chart").focus()
    visit.page.keyboard.press("End")
    visit.wait_for("chart-reading", re.compile(r"^After 688 users: 343 .*; in hindsight 365 \("))
    switch.uncheck()
    visit.wait_for_number_of("#chart .curve.told", 0)
    visit.wait_for("hindsight-gain", "")
    assert visit.page.locator("#chart .curve").get_attribute("d") == published


def test_where_services_make_the_noise_there_is_one_level_that_goes_on(
    open_page: Opener, server: FakeServer
) -> None:
    """And no hindsight, in which nothing would be gained."""
    (lowest, *_) = levels(77)
    told = estimate(fallback=True, lost_users=2)
    server.status = status(levels=[lowest], estimate=told)
    server.status["guarantee"] |= {"noise_by": "services", "mu": 0.231}
    server.status["plan"]["most_users"] = 100_000_000
    visit = open_page()
    visit.wait_for("users", "688 of 1,000,000 users expected")
    visit.wait_for("fallback", re.compile("^Batches were lost .* 2 users of theirs count as the"))
    visit.wait_for("guarantee", re.compile("from mu 0.231: .* for at most 100,000,000"))
    visit.wait_for("levels-note", re.compile("^Every user is in one batch"))
    assert visit.page.locator("#levels tr > :first-child").first.is_hidden()
    assert visit.page.locator("#hindsight-choice").is_hidden()


def test_hindsight_is_that_of_the_chosen_coordinate(open_page: Opener, server: FakeServer) -> None:
    server.status = status("vector:20", 20, estimate=estimate(value=[10.0 * i for i in range(20)]))
    server.hindsight = lambda coordinate: {**history(3 + coordinate), "ratio": 0.75}
    visit = open_page()
    visit.page.get_by_role("checkbox", name="in hindsight").check()
    visit.page.locator("#coordinate-list").select_option("7")
    expect(visit.page.locator("#chart .curve.told")).to_have_attribute(
        "d", re.compile(r"^M[^L]+(L[^L]+){9}$")
    )
