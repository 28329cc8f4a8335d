/**
 * The coins have the law that the accountant takes them to have.
 *
 * Chance is a fixed stream, so no test fails by accident; the thresholds are those at which one in
 * 10^6 streams would. That a deviation is found is shown by mutants, each of which must be.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { coinSum } from "../src/mechanisms.js";
import { coins, secureRandom, uniforms } from "../src/randomness.js";
import { kindOf } from "../src/values.js";
import { fixed } from "./support/chance.js";

const MOST_DEVIATIONS = 4.9; // of a normal variable: beyond with probability 10^-6

function deviations(ones, count, probability) {
  return Math.abs(ones - count * probability) / Math.sqrt(count * probability * (1 - probability));
}

const PROBABILITIES = [
  [1n, 1],
  [1639n, 12],
  [19661n, 16],
  [100_000_001n, 28],
  [1288490189n, 32],
  [(1n << 62n) + 12345n, 64],
];

for (const [numerator, bits] of PROBABILITIES) {
  test(`coins of ${numerator} / 2^${bits}`, () => {
    const count = 1_000_000;
    const p = Number(numerator) / 2 ** bits;
    const sum = (probability, seed) =>
      coins(fixed(seed), count, probability).reduce((a, b) => a + b, 0);
    assert.ok(deviations(sum({ numerator, bits }, 1), count, p) < MOST_DEVIATIONS);
    // Two per cent less is 10 standard deviations or more away: missed in fewer than 1 of 10^6.
    const less = { numerator: (((numerator << 64n) * 49n) / 50n) >> BigInt(bits), bits: 64 };
    assert.ok(deviations(sum(less, 2), count, p) > MOST_DEVIATIONS);
  });
}

/** The law of the ones among one user's messages for a bit: by convolution, exact enough. */
function lawOf(value, half, p) {
  let law = [1];
  const toss = (probability) => {
    const next = new Array(law.length + 1).fill(0);
    law.forEach((mass, ones) => {
      next[ones] += mass * (1 - probability);
      next[ones + 1] += mass * probability;
    });
    law = next;
  };
  for (let i = 0; i < half; i++) toss(p);
  for (let i = 0; i < half; i++) toss(1 - p);
  return value ? [0, ...law] : [...law, 0];
}

/** Chi-square, in standard deviations (Wilson and Hilferty); 20 are expected in a cell, or more. */
function surprise(counts, law, total) {
  let [statistic, freedom, seen, due] = [0, -1, 0, 0];
  for (let ones = 0; ones < law.length; ones++) {
    seen += counts[ones] ?? 0;
    due += total * law[ones];
    const left = law.slice(ones + 1).reduce((a, b) => a + b, 0) * total;
    if (due < 20 || (left < 20 && left > 0)) continue;
    statistic += (seen - due) ** 2 / due;
    [freedom, seen, due] = [freedom + 1, 0, 0];
  }
  const part = 2 / (9 * freedom);
  return (Math.cbrt(statistic / freedom) - (1 - part)) / Math.sqrt(part);
}

const NOISE = { bits: 16, probability: { numerator: 1639n, bits: 12 }, opposed: true };

function onesOf(noise, value, users, seed) {
  const mechanism = coinSum(kindOf("bit", false), 1, noise);
  const random = fixed(seed);
  const counts = [];
  for (let user = 0; user < users; user++) {
    const { messages } = mechanism.encode(Float64Array.of(value), random, new Uint8Array());
    assert.equal(messages.length, noise.bits + 1);
    const ones = messages.reduce((sum, message) => sum + message[0], 0);
    counts[ones] = (counts[ones] ?? 0) + 1;
  }
  return counts;
}

for (const value of [0, 1]) {
  test(`the ones of users who hold ${value}`, () => {
    const users = 30_000;
    const law = lawOf(value, NOISE.bits / 2, 1639 / 4096);
    assert.ok(surprise(onesOf(NOISE, value, users, 3), law, users) < MOST_DEVIATIONS);
    const mutants = {
      "the other value": onesOf(NOISE, 1 - value, users, 4),
      "coins that are not opposed": onesOf({ ...NOISE, opposed: false }, value, users, 5),
      "another probability": onesOf(
        { ...NOISE, probability: { numerator: 1200n, bits: 12 } },
        value,
        users,
        6,
      ),
      // Half of the coins, the rest always showing what half of them would on average.
      "half the coins": onesOf({ ...NOISE, bits: 8 }, value, users, 7).reduce(
        (counts, count, ones) => ((counts[ones + 4] = count), counts),
        [],
      ),
    };
    for (const [name, counts] of Object.entries(mutants)) {
      assert.ok(surprise(counts, law, users) > MOST_DEVIATIONS, name);
    }
  });
}

test("coins come after the steps, coordinate by coordinate", () => {
  const mechanism = coinSum(kindOf("histogram:300", false), 1, { ...NOISE, bits: 2 });
  const coordinates = kindOf("histogram:300", false).coordinates(299);
  const { messages } = mechanism.encode(coordinates, fixed(8), new Uint8Array());
  assert.equal(messages.length, 900);
  const numbers = messages.map(([low, high]) => low + 256 * high);
  numbers.forEach((number, place) => assert.equal(number >> 1, Math.floor(place / 3)));
  assert.deepEqual([numbers[0] & 1, numbers[897] & 1], [0, 1]);
});

test("uniforms are multiples of 2^-53 below 1", () => {
  const ends = uniforms((length) => new Uint8Array(length).fill(255), 1);
  assert.equal(ends[0], 1 - 2 ** -53);
  assert.equal(uniforms((length) => new Uint8Array(length), 1)[0], 0);
  const drawn = uniforms(fixed(9), 100_000);
  const mean = drawn.reduce((a, b) => a + b, 0) / drawn.length;
  assert.ok(Math.abs(mean - 0.5) * Math.sqrt(12 * drawn.length) < MOST_DEVIATIONS);
});

test("rounding is unbiased", () => {
  const kind = kindOf("real:-2.0:5.0", false);
  const mechanism = coinSum(kind, 5, { ...NOISE, bits: 0 });
  const random = fixed(10);
  const users = 20_000;
  let steps = 0;
  for (let user = 0; user < users; user++) {
    steps += mechanism
      .encode(kind.coordinates(0.1), random, new Uint8Array())
      .messages.reduce((a, [b]) => a + b, 0);
  }
  assert.ok(deviations(steps - users, users, (2.1 / 7) * 5 - 1) < MOST_DEVIATIONS);
});

test("the system's randomness comes in any length, and never twice", () => {
  const [one, other] = [secureRandom(200_000), secureRandom(200_000)];
  assert.notDeepEqual(one.subarray(0, 32), other.subarray(0, 32));
  assert.notDeepEqual(one.subarray(65_536, 65_568), one.subarray(0, 32));
  assert.ok(new Set(one.subarray(-256)).size > 100);
  assert.equal(secureRandom(0).length, 0);
});

test("no source but crypto.getRandomValues makes noise", async () => {
  const { readFileSync, readdirSync } = await import("node:fs");
  const folder = new URL("../src/", import.meta.url);
  const users = readdirSync(folder).filter((file) =>
    /Math\.random/.test(readFileSync(new URL(file, folder), "utf8")),
  );
  assert.deepEqual(users, ["requests.js"]); // how long to wait
});

test("both cells of a group have as many steps together, whichever way they are rounded", () => {
  const kind = kindOf("grouped:DE,FR:real:0.0:10.0", false);
  const mechanism = coinSum(kind, 3, { ...NOISE, bits: 0 });
  const random = fixed(11);
  const sums = [0, 0, 0, 0];
  for (let user = 0; user < 3000; user++) {
    const { messages } = mechanism.encode(kind.coordinates(["FR", 2.5]), random, new Uint8Array());
    const steps = [0, 0, 0, 0];
    for (const [message] of messages) steps[message >> 1] += message & 1;
    assert.deepEqual([steps[0], steps[2], steps[1] + steps[3]], [0, 0, 3]);
    steps.forEach((step, cell) => (sums[cell] += step));
  }
  assert.ok(deviations(sums[1], 3000, 0.75) < MOST_DEVIATIONS);
});
