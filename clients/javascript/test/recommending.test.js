/** A recommender's client: policies that count, arms that are taken, what is reported of them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { hex, sha256 } from "../src/bytes.js";
import { Document } from "../src/document.js";
import { AlreadyReported, NotCounted, connect, memoryStore } from "../src/index.js";
import { below } from "../src/randomness.js";
import { SignedPolicy } from "../src/policies.js";
import { fixed } from "./support/chance.js";
import { Service, documentOf, refusal } from "./support/service.js";
import { chanceOf, utf8, vectors } from "./support/vectors.js";

const { documents, refused, policies, refused_policies, choices, reports } = vectors("recommender");
const textOf = (name) => documents.find((one) => one.name === name).text;
const read = (name) => Document.of(utf8(textOf(name)));
const POLICIES = policies.filter((one) => one.document === "pairs").map((one) => one.text);
const PERSON = [
  [0.9, 0.1, -0.3],
  [0.9, 0.4, 0.0],
  [0.9, 0.0, 0.4],
];

/** A service of a recommender, which has this policy, or none. */
function serviceOf(policy = null, ...answers) {
  const service = new Service(textOf("pairs"), ...answers);
  service.policy = policy;
  const { fetch } = service;
  service.fetch = async (url, options) => {
    if (!url.endsWith("/v1/policy")) return fetch(url, options);
    service.requests.push({ url, options });
    return service.policy === null ? refusal(404)() : new Response(service.policy);
  };
  return service;
}

const asked = ({ requests }) => requests.filter(({ url }) => url.endsWith("/v1/policy")).length;

test("documents say how a recommender learns, names that are numbers in their places", async () => {
  for (const { name, text, digest } of documents) {
    if (name === "shares") {
      await assert.rejects(Document.of(utf8(text), digest), { code: "unsupported" });
      continue;
    }
    const { learning } = await Document.of(utf8(text), digest);
    const due = JSON.parse(text).learning;
    assert.equal(learning.dimension, due.dimension);
    assert.equal(learning.constant, due.constant);
    assert.deepEqual(learning.features, due.features);
    assert.equal(learning.policyKey, due.policy_key);
  }
  const { learning } = await read("pairs");
  assert.deepEqual([...learning.arms.keys()], ["a walk", "1984", "42"]);
  assert.equal((await Document.of(utf8(documentOf("ballots-bit").text))).learning, null);
});

for (const { why, text } of refused) {
  test(`no recommender: ${why}`, () =>
    assert.rejects(Document.of(utf8(text)), { name: "OverhandError", code: "document" }));
}

test("policies of the vectors, and what is signed of them", async () => {
  for (const { document: name, number, users, signed, text } of policies) {
    if (name === "shares") continue;
    const { learning, digest } = await read(name);
    const policy = await SignedPolicy.of(utf8(text), learning, digest);
    assert.equal(String(policy.number), number);
    assert.equal(String(policy.users), users);
    assert.equal(hex(policy.signedBytes(digest)), signed);
  }
});

for (const { why, text, after } of refused_policies) {
  test(`no policy: ${why}`, async () => {
    const service = serviceOf(after ?? text);
    const client = service.client({ maxAge: 1e-9 });
    if (after !== null) await client.choose(PERSON);
    service.policy = text;
    const choosing = client.choose(PERSON);
    await assert.rejects(choosing, { name: "OverhandError", code: "policy" });
    if (after === null) await assert.rejects(client.report(1), { code: "not-chosen" });
    assert.equal(service.received.length, 0);
  });
}

test("choices of the vectors", async () => {
  for (const { document: name, policy: place, contexts, scores, arm } of choices) {
    if (name === "shares") continue;
    const { learning, digest } = await read(name);
    const policy = await SignedPolicy.of(utf8(policies[place].text), learning, digest);
    const arms = contexts.map((row) => learning.checked(row, "a row"));
    const found = arms.map((x) => policy.score(x));
    for (const [i, score] of scores.entries()) {
      assert.ok(Math.abs(found[i] - score) <= 1e-12 * Math.abs(score), `${found[i]}, ${score}`);
    }
    assert.equal(policy.choose(arms), arm);
  }
});

for (const [place, report] of reports.entries()) {
  const { document: name, features, reward } = report;
  if (name === "shares") continue;
  test(`report ${place} of a recommender, byte for byte`, async () => {
    const document = await read(name);
    const coordinates = document.learning.coordinates(
      document.learning.checked(features, "it"),
      reward,
    );
    assert.deepEqual([...coordinates], report.coordinates);
    const chance = chanceOf(report, JSON.parse(textOf(name)).plan.mechanisms);
    const { bytes } = await document.encode(coordinates, chance);
    assert.equal(hex(await sha256(bytes)), report.report_sha256);
    assert.ok(chance.isUsedUp());
  });
}

test("a choice by the policy is reported once", async () => {
  const service = serviceOf(POLICIES[0]);
  const client = service.client();
  assert.equal(await client.choose(PERSON), 2);
  assert.equal((await client.policy()).number, 1n);
  await client.report(0.5);
  await assert.rejects(client.report(0.5), { code: "not-chosen" });
  assert.equal(service.received.length, 1);
  assert.equal(asked(service), 1);
  await client.choose(PERSON.map((row) => Float64Array.from(row)));
  const both = await Promise.allSettled([client.report(1), client.report(1)]);
  assert.deepEqual(both.map(({ status }) => status).sort(), ["fulfilled", "rejected"]);
  assert.equal(service.received.length, 2);
});

test("before the first policy any arm is taken, all alike, and asked for again when it is old", async () => {
  const service = serviceOf();
  const client = service.client({ maxAge: 1e-9 });
  const taken = new Set();
  for (let i = 0; i < 60; i++) taken.add(await client.choose(PERSON));
  assert.deepEqual([...taken].sort(), [0, 1, 2]); // else with probability 3 (2/3)^60
  assert.equal(await client.policy(), null);
  service.policy = POLICIES[1];
  assert.equal(await client.choose(PERSON), 1);
  service.policy = null;
  assert.equal(await client.choose(PERSON), 1, "the last one stays in force");
  const patient = service.client();
  await patient.choose(PERSON);
  const before = asked(service);
  await patient.choose(PERSON);
  assert.equal(asked(service), before);
});

test("a number below another has no favourites, and words that would make some are drawn again", () => {
  const words = [2 ** 32 - 1, 2 ** 32 - (2 ** 32 % 3) - 1];
  const random = () => new Uint8Array(Uint32Array.of(words.shift()).buffer);
  assert.equal(below(random, 3), 2);
  assert.equal(words.length, 0);
  const furthest = (draw) => {
    const [stream, counts] = [fixed(12), [0, 0, 0]];
    for (let i = 0; i < 3000; i++) counts[draw(stream)]++;
    return Math.max(...counts.map((count) => Math.abs(count - 1000)));
  };
  // Binomials of 3000 and 1/3: one of the three is 164 off, or more, with probability 8e-10. Two bits
  // that are taken modulo 3 have a favourite, and it is seen but with a probability below 1e-9.
  assert.ok(furthest((random) => below(random, 3)) < 164);
  assert.ok(furthest((random) => (random(1)[0] & 3) % 3) >= 164);
});

test("bad contexts and rewards are refused, and nothing is sent", async () => {
  const service = serviceOf(POLICIES[0]);
  const client = service.client();
  const bad = [
    undefined,
    [],
    {},
    "ab",
    [[0.9, 0.1]],
    [PERSON],
    [[0.9, 0.8, 0.0]],
    [[0.8, 0.1, 0.0]],
    [[0.9, NaN, 0.0]],
    [[0.9, "0.1", 0.0]],
    [[0.9, 0.1, 1e200]],
    [[0.9, 0.1, null]],
  ];
  for (const contexts of bad) {
    await assert.rejects(client.choose(contexts), { code: "value" }, JSON.stringify(contexts));
  }
  await assert.rejects(client.report(1), { code: "not-chosen" });
  await client.choose(PERSON);
  for (const reward of [-0.1, 1.1, NaN, Infinity, "1", null, undefined, [1], true]) {
    await assert.rejects(client.report(reward), { code: "value" });
  }
  assert.equal(service.received.length, 0);
  await client.report(1);
  assert.equal(service.received.length, 1);
});

test("a report that is not counted has its bytes, and is not made anew", async () => {
  const service = serviceOf(POLICIES[0], refusal(409));
  const client = service.client();
  await client.choose(PERSON);
  await assert.rejects(client.report(1), (error) => {
    assert.ok(error instanceof NotCounted);
    assert.equal(error.code, "outdated");
    assert.equal(error.reports.length, 1);
    return true;
  });
  assert.equal(service.received.length, 1);
});

test("no more reports than the plan allows one person", async () => {
  const client = serviceOf(POLICIES[0]).client({ store: memoryStore() });
  await client.choose(PERSON);
  await client.report(1);
  await client.choose(PERSON);
  await assert.rejects(client.report(1), AlreadyReported);
});

test("a sum has nothing to choose, and maxAge is a number of seconds", async () => {
  const service = new Service(documentOf("ballots-bit").text);
  await assert.rejects(service.client().choose(PERSON), { code: "argument" });
  for (const maxAge of [0, -1, NaN, Infinity, "60"]) {
    const connecting = connect("https://a.example", { store: null, fetch: service.fetch, maxAge });
    await assert.rejects(connecting, { code: "argument" });
  }
});
