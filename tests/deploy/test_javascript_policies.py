"""The JavaScript client in a real browser: a recommender's policies, by its own Ed25519."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from support.vectors import FOLDER

SOURCE = Path(__file__).parents[2] / "clients" / "javascript" / "src"
PLACE = "http://localhost:1"  # a secure context that nobody listens at

pytestmark = pytest.mark.browser

READ = """async ({ documents, policies, refused_policies, choices }) => {
    const [{ Learning }, { SignedPolicy }, { parse }] = await Promise.all(
        ["learning", "policies", "json"].map((name) => import(`/${name}.js`)));
    const utf8 = (text) => new TextEncoder().encode(text);
    const of = new Map(documents.map(({ name, text, digest }) => {
        const { dimension } = JSON.parse(text).learning;
        const plan = { kind: { spec: `regression:${dimension}` }, clip: false };
        return [name, { digest, learning: Learning.of(parse(text).get("learning"), plan) }];
    }));
    const read = ({ document, text }) => {
        const { learning, digest } = of.get(document);
        return SignedPolicy.of(utf8(text), learning, digest);
    };
    const made = await Promise.all(policies.map(read));
    const refusals = await Promise.allSettled(
        refused_policies.filter(({ after }) => after === null).map(read));
    return {
        numbers: made.map(({ number }) => String(number)),
        codes: refusals.map(({ reason }) => reason?.code ?? "taken"),
        arms: choices.map(({ document, policy, contexts }) => made[policy].choose(
            contexts.map((row) => of.get(document).learning.checked(row, "a row")))),
    };
}"""


def test_policies_are_checked_and_followed_in_a_browser(browser: Browser) -> None:
    vectors = json.loads((FOLDER / "recommender.json").read_text(encoding="utf-8"))
    page = browser.new_page()

    def serve(route: Route) -> None:
        name = route.request.url.removeprefix(f"{PLACE}/")
        text = (SOURCE / name).read_text() if name else "<!doctype html><title>a page</title>"
        route.fulfill(body=text, content_type="text/javascript" if name else "text/html")

    page.route(f"{PLACE}/**", serve)
    page.goto(f"{PLACE}/")
    found = page.evaluate(READ, vectors)
    page.close()
    assert found["numbers"] == [one["number"] for one in vectors["policies"]]
    assert found["arms"] == [one["arm"] for one in vectors["choices"]]
    assert len(found["codes"]) >= 15
    assert set(found["codes"]) == {"policy"}
