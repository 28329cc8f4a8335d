/** Documents of plans as large as deployed ones, for measurements: `node plans.js` prints them. */

import { fileURLToPath } from "node:url";

import { hex, sha256, unhex } from "../../src/bytes.js";
import { compact, indented } from "../../src/json.js";
import { utf8 } from "./vectors.js";

const KEY = "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c";
const DEGREES = [46n, 15n, 12n, 10n];
const laplace = { shape: 1n, users: 1n, ratio: "0x1.8000000000000p-1" };
const coins = (bits) => ({ bits, probability: [1639n, 12n], opposed: true });

/** @param {string} kind @param {(level: number) => object} levelOf */
async function documentOf(kind, levelOf) {
  let size = 1n;
  const mechanisms = DEGREES.map((degree, level) => {
    const { mechanism, noise, steps = 1n, ...more } = levelOf(level);
    return { mechanism, size: (size *= degree), noise, steps, ...more };
  });
  const plan = {
    format: 4n,
    horizon: 1_000_000n,
    values: { kind, clip: false },
    degrees: DEGREES,
    mechanisms,
    epsilon: 1.0,
    delta: 1e-6,
    shufflers: 4n,
    honest: 1.0,
    reports: 1n,
    combine: true,
    hold: false,
  };
  return `${indented(
    mapped({
      version: 2n,
      plan,
      plan_digest: hex(await sha256(utf8(compact(mapped(plan))))),
      public_key: KEY,
      key_id: hex(await sha256(unhex(KEY))).slice(0, 16),
    }),
  )}\n`;
}

/** Objects as JSON is read: as maps. */
function mapped(value) {
  if (Array.isArray(value)) return value.map(mapped);
  if (typeof value !== "object" || value === null) return value;
  return new Map(Object.entries(value).map(([name, item]) => [name, mapped(item)]));
}

/** What a report of each may take, in milliseconds. */
export async function cases() {
  const services = (part) => ({ each_service: part, bound: null });
  const ballots = {
    mechanism: "ballots",
    noise: { each_service: laplace, bound: 50n },
    dummies: 100n,
  };
  const pairs = { mechanism: "pairs", noise: services(laplace), modulus_bits: 20n };
  const vector = {
    mechanism: "pairs",
    noise: services(coins(1000n)),
    steps: 1491n,
    modulus_bits: 26n,
  };
  const sixteen = (level) => ({ mechanism: "coins", noise: coins([6n, 2n, 2n, 2n][level]) });
  return [
    {
      name: "a bit by ballots, 4 messages",
      most: 30,
      value: 1,
      text: await documentOf("bit", () => ballots),
    },
    {
      name: "a bit by pairs, 4 messages",
      most: 30,
      value: 1,
      text: await documentOf("bit", () => pairs),
    },
    {
      name: "a bit by coins, 16 messages",
      most: 100,
      value: 1,
      text: await documentOf("bit", sixteen),
    },
    {
      name: "a 20-vector by pairs, 4 messages",
      most: 40,
      value: Array(20).fill(0.1),
      text: await documentOf("vector:20", () => vector),
    },
  ];
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(JSON.stringify(await cases()));
