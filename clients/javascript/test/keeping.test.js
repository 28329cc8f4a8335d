/** Reports are kept before they are sent, and never more of them made than the plan allows. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { IDBFactory } from "fake-indexeddb";

import { AlreadyReported, browserStore, memoryStore } from "../src/index.js";
import { COUNTED, Service, documentOf, refusal } from "./support/service.js";

const { text, digest } = documentOf("ballots-histogram");
const gone = () => Promise.reject(new TypeError("fetch failed"));

/** @type {[string, () => import("../src/keeping.js").Store][]} */
const STORES = [
  ["memory", memoryStore],
  ["IndexedDB", () => ((globalThis.indexedDB = new IDBFactory()), browserStore())],
];

for (const [name, make] of STORES) {
  test(`${name}: one person reports once`, async () => {
    const [store, service] = [make(), new Service(text)];
    const client = service.client({ store });
    assert.deepEqual(await client.status(), { made: 0, undelivered: 0, allowed: 1 });
    await client.report(1);
    assert.deepEqual(await client.status(), { made: 1, undelivered: 0, allowed: 1 });
    await assert.rejects(
      client.report(1),
      (error) => error instanceof AlreadyReported && error.reports.length === 0,
    );
    await assert.rejects(service.client({ store }).report(0), { code: "already-reported" });
    assert.equal(service.received.length, 1);
    assert.equal(await client.resend(), 0);
  });

  test(`${name}: what was not delivered is sent again after a reload, byte for byte`, async () => {
    const [store, service] = [make(), new Service(text, gone)];
    await assert.rejects(service.client({ store }).report(2), { code: "unreachable" });
    service.answers = [COUNTED];
    const again = service.client({ store });
    assert.deepEqual(await again.status(), { made: 1, undelivered: 1, allowed: 1 });
    await assert.rejects(again.report(2), (error) => {
      assert.equal(Buffer.from(error.reports[0]).toString("hex"), service.received[0]);
      return error.code === "already-reported" && /resend/.test(error.message);
    });
    assert.equal(await again.resend(), 1);
    assert.equal(new Set(service.received).size, 1);
    assert.deepEqual(await again.status(), { made: 1, undelivered: 0, allowed: 1 });
    assert.equal(await again.resend(), 0);
  });

  test(`${name}: a report is kept before it is sent`, async () => {
    const store = make();
    let keptThen;
    const service = new Service(text, async () => {
      keptThen = await store.made(digest);
      return COUNTED();
    });
    await service.client({ store }).report(2);
    assert.equal(keptThen.length, 1);
    assert.equal(Buffer.from(keptThen[0].bytes).toString("hex"), service.received[0]);
  });

  test(`${name}: two pages that report at once make one report`, async () => {
    const [store, service] = [make(), new Service(text)];
    const pages = [service.client({ store }), service.client({ store }), service.client({ store })];
    const done = await Promise.allSettled(pages.map((page) => page.report(1)));
    assert.deepEqual(done.map(({ status }) => status).sort(), [
      "fulfilled",
      "rejected",
      "rejected",
    ]);
    assert.equal(service.received.length, 1);
    for (const { reason } of done)
      assert.ok(reason === undefined || reason.code === "already-reported");
  });

  test(`${name}: as many reports as the plan allows, for every document its own`, async () => {
    const store = make();
    const bytes = (place) => Uint8Array.of(place);
    assert.ok(await store.add("a", { id: "1", bytes: bytes(1) }, 2));
    assert.ok(await store.add("a", { id: "2", bytes: bytes(2) }, 2));
    assert.ok(!(await store.add("a", { id: "3", bytes: bytes(3) }, 2)));
    assert.ok(await store.add("b", { id: "3", bytes: bytes(3) }, 2));
    await store.delivered("a", "1");
    await store.delivered("a", "unknown");
    const made = await store.made("a");
    assert.deepEqual(
      made.map(({ id, bytes }) => [id, bytes?.[0] ?? null]),
      [
        ["1", null],
        ["2", 2],
      ],
    );
  });
}

test("a refused report stays kept, and is not made again", async () => {
  const [store, service] = [memoryStore(), new Service(text, refusal(403))];
  await assert.rejects(service.client({ store }).report(1), { code: "refused" });
  await assert.rejects(service.client({ store }).report(1), { code: "already-reported" });
  assert.equal(service.received.length, 1);
});

test("a report is counted, even if that cannot be noted", async () => {
  const [kept, service] = [memoryStore(), new Service(text)];
  const full = { ...kept, delivered: () => Promise.reject(new Error("disk full")) };
  await service.client({ store: full }).report(1);
  assert.equal(await service.client({ store: kept }).resend(), 1);
  assert.equal(new Set(service.received).size, 1);
});

test("nothing is sent that could not be kept", async () => {
  const service = new Service(text);
  const full = { ...memoryStore(), add: () => Promise.reject(new Error("disk full")) };
  await assert.rejects(service.client({ store: full }).report(1), /disk full/);
  globalThis.indexedDB = /** @type {any} */ ({
    open: () => {
      throw new Error("private mode");
    },
  });
  await assert.rejects(service.client({ store: browserStore() }).report(1), { code: "store" });
  const liar = { ...memoryStore(), add: async () => false };
  await assert.rejects(service.client({ store: liar }).report(1), { code: "store" });
  assert.equal(service.received.length, 0);
});
