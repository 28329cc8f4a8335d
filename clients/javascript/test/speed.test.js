/** What it takes to make a report, of processor time: a machine may be busy otherwise. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Document } from "../src/document.js";
import { cases } from "./support/plans.js";
import { utf8 } from "./support/vectors.js";

for (const { name, most, value, text } of await cases()) {
  test(`${name}: at most ${most} ms`, async (context) => {
    const document = await Document.of(utf8(text));
    const times = [];
    for (let i = 0; i < 21; i++) {
      const started = process.cpuUsage();
      await document.encode(document.plan.kind.coordinates(value));
      const { user, system } = process.cpuUsage(started);
      times.push((user + system) / 1000);
    }
    times.sort((a, b) => a - b);
    context.diagnostic(`quarter ${times[5].toFixed(1)} ms, middle ${times[10].toFixed(1)} ms`);
    assert.ok(times[5] <= most, `${times[5]} ms`);
  });
}
