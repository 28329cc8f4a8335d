/** Whatever a service says: one error with a code, and nothing is counted twice. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { AlreadyReported, NotCounted, OverhandError, connect, memoryStore } from "../src/index.js";
import { COUNTED, Service, documentOf, refusal } from "./support/service.js";
import { utf8, vectors } from "./support/vectors.js";

const coins = documentOf("coins-bit");
const ballots = documentOf("ballots-histogram");

/** The error that something ends with, which is one of ours. */
async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof OverhandError, String(error));
    assert.ok(error.message.length > 10 && !error.message.includes("\n"), error.message);
    return error;
  }
  return assert.fail("it did not fail");
}

test("a report is counted, with a token and nothing else about who sends it", async () => {
  const service = new Service(coins.text);
  await service.client({ token: "A".repeat(43) }).report(1);
  const [asked, { url, options }] = service.requests;
  assert.deepEqual(asked.options.headers, {});
  assert.equal(url, "https://service.example/v1/reports");
  assert.deepEqual(options.headers, {
    authorization: `Bearer ${"A".repeat(43)}`,
    "content-type": "application/octet-stream",
  });
  assert.equal(options.credentials, "omit");
  assert.equal(options.redirect, "manual");
  assert.equal(options.referrerPolicy, "no-referrer");
});

test("reports of different values have the same length and nothing else in common", async () => {
  const service = new Service(coins.text);
  const client = service.client();
  for (const value of [0, 1, true]) await client.report(value);
  const lengths = new Set(service.received.map((report) => report.length));
  assert.equal(lengths.size, 1);
  const heads = service.received.map((report) => report.slice(0, 2 * 36));
  assert.equal(new Set(heads).size, 1);
  const seals = service.received.flatMap((report) => report.slice(2 * 52).match(/.{98}/g));
  assert.equal(new Set(seals).size, seals.length);
});

for (const status of [408, 429, 500, 502, 503, 504]) {
  test(`after ${status} the same bytes are sent again`, async () => {
    const service = new Service(coins.text, refusal(status), refusal(status), COUNTED);
    await service.client().report(1);
    assert.equal(service.received.length, 3);
    assert.equal(new Set(service.received).size, 1);
    assert.ok(service.waited[0] >= 0.2 && service.waited[1] <= 1.2, String(service.waited));
  });
}

for (const status of [301, 400, 401, 403, 404, 409, 410, 413, 415]) {
  test(`${status} is the end of it, and the error has the bytes`, async () => {
    const service = new Service(ballots.text, refusal(status));
    const error = await failure(service.client().report(2));
    assert.ok(error instanceof NotCounted);
    assert.equal(error.code, { 301: "nonsense", 409: "outdated" }[status] ?? "refused");
    assert.match(error.message, new RegExp(`${status}: said ${status}`));
    assert.deepEqual(
      error.reports.map((report) => Buffer.from(report).toString("hex")),
      service.received,
    );
    assert.equal(service.received.length, 1);
  });
}

test("the answers of the protocol's vectors are sent again, or not, as they say", async () => {
  for (const { case: name, status, retry_after, body, send_again } of vectors("answers")) {
    const headers = retry_after === null ? {} : { "retry-after": String(retry_after) };
    const service = new Service(
      ballots.text,
      () => new Response(body, { status, headers }),
      COUNTED,
    );
    await service
      .client()
      .report(0)
      .catch((error) => assert.ok(error instanceof NotCounted));
    assert.equal(service.received.length, send_again ? 2 : 1, name);
    assert.equal(new Set(service.received).size, 1, name);
  }
});

test("Retry-After is kept to, within reason", async () => {
  const answers = ["7", "86400", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "1e9"];
  const refusals = answers.map((seconds) => refusal(429, { "retry-after": seconds }));
  const service = new Service(coins.text, ...refusals, COUNTED);
  await service.client().report(0);
  const [first, second] = service.waited;
  assert.ok(first >= 3.5 && first <= 10.5, String(first));
  assert.ok(second >= 15 && second <= 45, String(second));
  assert.equal(service.received.length, 6);
});

test("no network: tried eight times, with waits that grow", async () => {
  const gone = () => Promise.reject(new TypeError("fetch failed"));
  const service = new Service(coins.text, gone);
  const error = await failure(service.client().report(1));
  assert.equal(error.code, "unreachable");
  assert.equal(error.reports.length, 1);
  assert.equal(service.received.length, 8);
  assert.equal(new Set(service.received).size, 1);
  assert.ok(service.waited.at(-1) > service.waited[0]);
  const nowhere = new Service(gone);
  assert.equal((await failure(nowhere.client().report(1))).code, "unreachable");
  assert.equal(nowhere.received.length, 0);
});

for (const [what, body] of [
  ["a page", "<html>Sign in to the hotel's network</html>"],
  ["another object", '{"status": "lost"}'],
  ["a list", '["counted"]'],
  ["null", "null"],
  ["nothing", ""],
]) {
  test(`${what} instead of an answer is nonsense, and not taken for a yes`, async () => {
    const service = new Service(coins.text, () => new Response(body));
    const store = memoryStore();
    const error = await failure(service.client({ store }).report(1));
    assert.ok(error instanceof NotCounted);
    assert.equal(error.code, "nonsense");
    assert.equal(service.received.length, 1);
    service.answers = [COUNTED];
    assert.equal(await service.client({ store }).resend(), 1);
    assert.equal(new Set(service.received).size, 1);
  });
}

test("nonsense instead of a document", async () => {
  for (const text of [
    "",
    "nonsense",
    "null",
    "[1]",
    "{}",
    '{"version": 3}',
    "[".repeat(10_000),
    "9".repeat(300_000),
  ]) {
    assert.equal(
      (await failure(new Service(text).client().report(1))).code,
      "document",
      text.slice(0, 20),
    );
  }
  const bytes = new Service(() => new Response(Uint8Array.of(0xff, 0xfe, 0)));
  assert.equal((await failure(bytes.client().report(1))).code, "document");
  const refused = new Service(refusal(404));
  assert.equal((await failure(refused.client().report(1))).code, "refused");
});

test("an answer without an end is given up", async () => {
  let pieces = 0;
  const pull = (/** @type {ReadableStreamDefaultController} */ to) => {
    pieces += 1;
    to.enqueue(new Uint8Array(2 ** 20));
  };
  const endless = () => new Response(new ReadableStream({ pull }));
  const error = await failure(new Service(coins.text, endless).client().report(1));
  assert.equal(error.code, "unreachable");
  assert.match(error.message, /more than 16777216 bytes/);
  assert.ok(pieces < 8 * 20, `${pieces} pieces were read`);
});

test("a document that is not the pinned one", async () => {
  const service = new Service(ballots.text);
  const pinned = service.client({ digest: ballots.digest, trustService: false });
  await pinned.report(2);
  assert.equal(service.received.length, 1);
  const other = service.client({ digest: coins.digest });
  assert.equal((await failure(other.report(2))).code, "digest");
  assert.equal(service.received.length, 1);
});

test("with services' noise a digest must be pinned, or the service trusted", async () => {
  const options = (service) => ({ store: null, fetch: service.fetch });
  const service = new Service(ballots.text);
  const error = await failure(connect("https://service.example", options(service)));
  assert.equal(error.code, "digest");
  assert.match(error.message, /overhand verify/);
  await connect("https://service.example", { ...options(service), trustService: true });
  await connect("https://service.example", { ...options(service), digest: ballots.digest });
  await connect("https://service.example", options(new Service(coins.text)));
});

test("a new plan: with users' noise the value is encoded anew, once", async () => {
  const service = new Service(coins.text, refusal(409), COUNTED);
  const client = service.client();
  await client.document();
  service.text = documentOf("published-bit").text;
  await client.report(1);
  assert.equal(service.received.length, 2);
  assert.notEqual(service.received[0].length, service.received[1].length);
});

test("the same plan after a 409 is not reported to again", async () => {
  const service = new Service(coins.text, refusal(409));
  const error = await failure(service.client().report(1));
  assert.equal(error.code, "outdated");
  assert.equal(service.received.length, 1);
});

test("a new plan: with services' noise nothing is sealed again", async () => {
  const service = new Service(ballots.text, refusal(409), COUNTED);
  const client = service.client();
  await client.document();
  service.text = documentOf("ballots-bit").text;
  const error = await failure(client.report(1));
  assert.equal(error.code, "outdated");
  assert.equal(error.reports.length, 1);
  assert.equal(service.received.length, 1);
});

test("a 409 after an answer that was lost leaves open whether it was counted", async () => {
  const lost = () => Promise.reject(new TypeError("fetch failed"));
  const service = new Service(coins.text, lost, refusal(409));
  const client = service.client();
  await client.document();
  service.text = documentOf("published-bit").text;
  assert.equal((await failure(client.report(1))).code, "refused");
  assert.equal(new Set(service.received).size, 1);
});

test("options that cannot be used", async () => {
  const service = new Service(coins.text);
  const told = { store: null, fetch: service.fetch };
  for (const [url, options] of [
    ["service.example", told],
    ["ftp://service.example", told],
    [undefined, told],
    ["https://[", told],
    ["https://", told],
    ["https://name:secret@service.example", told],
    ["https://service.example/?mark=7", told],
    ["https://service.example:port", told],
    ["https://service.example", { ...told, token: null }],
    ["https://service.example", { ...told, trustService: "no" }],
    ["https://service.example", { ...told, insecure: "no" }],
    ["https://service.example", { ...told, maxAge: 0 }],
    ["https://service.example", { ...told, fetch: null }],
    ["https://service.example", { ...told, store: {} }],
    ["https://service.example", null],
    [new URL("ftp://service.example"), told],
    ["https://service.example", { ...told, digest: "00" }],
    ["https://service.example", { ...told, digest: coins.digest.toUpperCase() }],
    ["https://service.example", { ...told, token: "two words" }],
  ]) {
    assert.equal((await failure(connect(url, options))).code, "argument");
  }
  assert.equal(
    (await failure(connect("https://service.example", { fetch: service.fetch }))).code,
    "store",
  );
  assert.equal(service.requests.length, 0);
  const client = await connect(new URL("https://service.example/behind/"), told);
  assert.equal(service.requests[0].url, "https://service.example/behind/v1/document");
  assert.equal((await failure(client.send(/** @type {any} */ ("a report")))).code, "argument");
  assert.equal(service.received.length, 0);
});

test("http to another machine is refused before anything is sent, unless it is insecure", async () => {
  const service = new Service(coins.text);
  const told = { store: null, fetch: service.fetch, token: "A".repeat(43) };
  for (const host of [
    "service.example",
    "service.example:8000/behind",
    "192.168.0.7",
    "10.127.0.1",
    "128.0.0.1",
    "0.0.0.0",
    "127.0.0.1.service.example",
    "127.service.example",
    "localhost.service.example",
    "localhost.",
    "notlocalhost",
    "poll.localhost",
    "service.example\\.localhost",
    "[::2]",
    "[fe80::1]",
    "[::ffff:10.0.0.1]",
    "[2001:db8::ffff:7f00:1]",
  ]) {
    const error = await failure(connect(`http://${host}`, told));
    assert.equal(error.code, "insecure", host);
    assert.match(error.message, /is another machine.*https:\/\/.*insecure: true/);
    assert.equal((await failure(connect(new URL(`http://${host}`), told))).code, "insecure", host);
    assert.equal(service.requests.length, 0);
    await connect(`http://${host}`, { ...told, insecure: true });
    await connect(`https://${host}`, told);
    assert.equal(service.requests.splice(0).length, 2);
  }
});

test("http on this machine is not refused, however its address is spelt", async () => {
  for (const [host, asked] of [
    ["localhost", "localhost"],
    ["LocalHost:8000/behind/", "localhost:8000/behind"],
    ["127.0.0.1", "127.0.0.1"],
    ["127.255.3.4:8000", "127.255.3.4:8000"],
    ["127.1", "127.0.0.1"],
    ["0x7f.1", "127.0.0.1"],
    ["[::1]:8000", "[::1]:8000"],
    ["[0:0:0:0:0:0:0:1]", "[::1]"],
    ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]"],
    ["[::ffff:127.255.0.1]", "[::ffff:7fff:1]"],
  ]) {
    const service = new Service(coins.text);
    await connect(`http://${host}`, { store: null, fetch: service.fetch });
    assert.equal(service.requests[0].url, `http://${asked}/v1/document`);
  }
});

test("names below localhost are this machine in a browser, which asks nobody for them", async (t) => {
  const service = new Service(coins.text);
  const told = { store: null, fetch: service.fetch };
  Object.assign(globalThis, { isSecureContext: true });
  t.after(() => Reflect.deleteProperty(globalThis, "isSecureContext"));
  await connect("http://poll.localhost:8000", told);
  for (const host of ["notlocalhost", "poll.localhost.service.example", "poll.localhost."]) {
    assert.equal((await failure(connect(`http://${host}`, told))).code, "insecure");
  }
  assert.equal(service.requests.length, 1);
});

test("a value of the wrong kind is not reported", async () => {
  const service = new Service(coins.text);
  const client = service.client();
  for (const value of [2, -1, 0.5, NaN, "1", null, undefined, [1], {}, 1n, Symbol("one")]) {
    assert.equal((await failure(client.report(value))).code, "value");
  }
  assert.equal(service.received.length, 0);
});

test("what the service says is shown only as far as it is fit to be", async () => {
  const words = `\u001b[31m${"x".repeat(1000)}\n`;
  const said = () => new Response(JSON.stringify({ error: words }), { status: 400 });
  const error = await failure(new Service(coins.text, said).client().report(1));
  assert.ok(error.message.length < 260 && !error.message.includes("\u001b"));
});

test("a document is fetched again after it could not be", async () => {
  const service = new Service(refusal(404));
  const client = service.client();
  assert.equal((await failure(client.report(1))).code, "refused");
  service.text = coins.text;
  await client.report(1);
  assert.equal(service.received.length, 1);
});

test("AlreadyReported is a NotCounted is an OverhandError is an Error", () => {
  const error = new AlreadyReported("made", [utf8("x")]);
  assert.ok(
    error instanceof NotCounted && error instanceof OverhandError && error instanceof Error,
  );
  assert.deepEqual([error.name, error.code], ["AlreadyReported", "already-reported"]);
});
