/**
 * A real server and a real shuffling service on the loopback, and as many reports from here as from
 * Python. All are counted, and nothing that a service sees of a report tells who made it.
 */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { connect } from "../src/index.js";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const OURS = join(ROOT, ".venv", "bin", "python");
const PYTHON = process.env.OVERHAND_PYTHON ?? (existsSync(OURS) ? OURS : "python3");
const EACH = 1000;
const AT_ONCE = 16;
const SECONDS = 300; // for what takes a few, however much else the machine does

const run = promisify(execFile);
const processes = [];
const home = await mkdtemp(join(tmpdir(), "overhand-"));
const settings = { cwd: home, env: { ...process.env, PYTHONPATH: join(ROOT, "src") } };

after(async () => {
  for (const process of processes) process.kill();
  await rm(home, { recursive: true, force: true });
});

/** What a command of the command line prints. */
async function overhand(...words) {
  const { stdout } = await run(PYTHON, ["-m", "overhand", ...words], settings);
  return JSON.parse(stdout);
}

const HOLD = `
import json, socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in held:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
print(json.dumps([one.getsockname()[1] for one in held]), flush=True)
sys.stdin.read()
`;

/**
 * So many ports that nobody else is given: they stay bound, in a process that does not listen there,
 * and whoever reuses addresses, as all servers do, may. (Node cannot bind without listening.)
 */
async function freePorts(count) {
  const holder = spawn(PYTHON, ["-c", HOLD, String(count)], {
    ...settings,
    stdio: ["pipe", "pipe", "inherit"],
  });
  processes.push(holder);
  const [told] = await once(holder.stdout, "data");
  return JSON.parse(told);
}

/** A service as a process of its own, once it answers. */
async function started(role, port, ...words) {
  const service = spawn(PYTHON, ["-m", "overhand", role, "--port", String(port), ...words], {
    ...settings,
    stdio: "ignore",
  });
  processes.push(service);
  await until(`the ${role} is up`, () =>
    fetch(`http://127.0.0.1:${port}/readyz`).then(
      ({ ok }) => ok,
      () => false,
    ),
  );
  return `http://127.0.0.1:${port}`;
}

async function until(what, isSo) {
  const deadline = Date.now() + 1000 * SECONDS;
  for (;;) {
    const found = await isSo();
    if (found) return found;
    assert.ok(Date.now() < deadline, `not within ${SECONDS} seconds: ${what}`);
    await sleep(100);
  }
}

/** Hands every request on to a service, and keeps what came of each report. */
async function listening(url, reports) {
  const relay = createServer((incoming, answer) => {
    const chunks = [];
    incoming.on("data", (chunk) => chunks.push(chunk));
    incoming.on("end", () => {
      const body = Buffer.concat(chunks);
      if (incoming.method === "POST") reports.push({ headers: incoming.headers, body });
      // A connection for each: one that is kept may be closed just when it is used again.
      const options = { method: incoming.method, headers: incoming.headers, agent: false };
      const onward = request(url + incoming.url, options, (reply) => {
        answer.writeHead(reply.statusCode, reply.headers);
        reply.pipe(answer);
      });
      onward.end(body);
    });
  });
  relay.keepAliveTimeout = 0; // never closed while clients may send
  await new Promise((ready) => relay.listen(0, "127.0.0.1", ready));
  after(() => relay.closeAllConnections());
  after(() => relay.close());
  return `http://127.0.0.1:${relay.address().port}`;
}

/** The values of so many users, a third of them ones. */
const values = Array.from({ length: EACH }, (_, user) => Number(user % 3 === 0));

async function reportAll(url, digest) {
  const client = await connect(url, { digest, store: null });
  const left = [...values];
  const one = async () => {
    while (left.length > 0) await client.report(left.pop());
  };
  await Promise.all(Array.from({ length: AT_ONCE }, one));
}

test(
  "a thousand reports from Node and a thousand from Python",
  { timeout: 4000 * SECONDS },
  async () => {
    await overhand(
      "plan",
      "--horizon",
      String(3 * EACH),
      "--epsilon",
      "1",
      "--delta",
      "1e-6",
      "--mechanism",
      "pairs",
      "--save",
      "plan.json",
      "--json",
    );
    const { digest } = await overhand("prepare", "--plan", "plan.json", "--json");
    const [serverPort, shufflerPort] = await freePorts(2);
    const server = await started("server", serverPort, "--workers", "1");
    const shuffler = await started("shuffler", shufflerPort, "--server", server, "--tick", "0.2");
    const [fromNode, fromPython] = [[], []];
    await writeFile(join(home, "values.csv"), values.map((value) => `${value}\n`).join(""));
    const [, { counted }] = await Promise.all([
      reportAll(await listening(shuffler, fromNode), digest),
      overhand(
        "client",
        await listening(shuffler, fromPython),
        "--file",
        "values.csv",
        "--digest",
        digest,
        "--json",
      ),
    ]);
    assert.equal(counted, EACH);
    assert.deepEqual([fromNode.length, fromPython.length], [EACH, EACH]);
    checkAlike(fromNode, fromPython, digest);
    await checkSum(server, 2 * values.reduce((a, b) => a + b));
  },
);

/** Bodies have one length and one beginning; headers differ in what the two libraries send. */
function checkAlike(fromNode, fromPython, digest) {
  const all = [...fromNode, ...fromPython].map(({ body }) => body);
  assert.equal(new Set(all.map((body) => body.length)).size, 1);
  assert.deepEqual(
    [...new Set(all.map((body) => body.subarray(0, 36).toString("hex")))],
    [Buffer.from("OVH3").toString("hex") + digest],
  );
  assert.equal(new Set(all.map((body) => body.subarray(36, 52).toString("hex"))).size, all.length);
  // Every other byte is uniform: those of either client have the mean that uniform ones have.
  for (const reports of [fromNode, fromPython]) {
    const bytes = Buffer.concat(reports.map(({ body }) => body.subarray(36)));
    const mean = bytes.reduce((a, b) => a + b, 0) / bytes.length;
    // A point of X25519 is below 2^255: its last byte is below 128, and the rest are not bounded.
    assert.ok(mean > 120 && mean < 130, String(mean));
  }
  const names = (reports) => new Set(reports.flatMap(({ headers }) => Object.keys(headers)));
  const [ours, theirs] = [names(fromNode), names(fromPython)];
  assert.deepEqual([...ours].filter((name) => !theirs.has(name)).sort(), [
    "accept-language",
    "cache-control",
    "connection",
    "pragma",
    "sec-fetch-mode",
  ]);
  assert.deepEqual(
    [...theirs].filter((name) => !ours.has(name)),
    [],
  );
}

/** How many batches of a level are full. */
const batchesOf = ({ size }) => Math.floor((2 * EACH) / size);
/** Whether as many came of them, and were opened. */
const isComplete = (level) => level.published + level.lost >= batchesOf(level);

async function checkSum(server, truth) {
  const plan = JSON.parse(await readFile(join(home, "plan.json"), "utf8"));
  const covered = 2 * EACH - ((2 * EACH) % plan.degrees[0]);
  const status = await until("the sum is published", async () => {
    const said = await (await fetch(`${server}/v1/status`)).json();
    const isPublished = said.estimate?.t === covered && !said.estimate.fallback;
    return isPublished && said.levels.every(isComplete) ? said : undefined;
  });
  const { value, std } = status.estimate;
  // Beyond with a probability below 1e-13: the noise of this plan is a sum of Gaussian draws, which
  // are rounded. Those who are pending may all be ones.
  assert.ok(
    Math.abs(value - truth) <= 8 * std + 2 * EACH - covered,
    `${value} of ${truth}, std ${std}`,
  );
  for (const level of status.levels) {
    const full = batchesOf(level);
    assert.deepEqual(
      [level.received, level.published, level.lost, level.garbage],
      [full, full, 0, 0],
    );
  }
}
