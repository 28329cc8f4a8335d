/** Documents of plans as large as deployed ones, for measurements: `node plans.js` prints them. */

import { fileURLToPath } from "node:url";

import { hex, sha256, unhex } from "../../src/bytes.js";
import { compact, indented } from "../../src/json.js";
import { utf8 } from "./vectors.js";

const KEY = "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c";
const DEGREES = [46n, 15n, 12n, 10n];
/** Of six rotations, as those of the planner. */
const correlated = {
  step: 179632473514602n,
  rotations: [
    [127n, 15n, 127n, 14n, -76572714220426n],
    [79n, 13n, 79n, 12n, 128155948847900n],
    [98n, 12n, 98n, 11n, -140801768000033n],
    [122n, 11n, 122n, 10n, 143605540177692n],
    [77n, 9n, 75n, 8n, -146670663582259n],
    [102n, 8n, 88n, 7n, 159758042711850n],
  ],
  cap: 4_000_000n,
};
const coins = (bits) => ({ bits, probability: [1639n, 12n], opposed: true });

/** @param {string} kind @param {bigint[]} degrees @param {(level: number) => object} levelOf */
async function documentOf(kind, degrees, levelOf) {
  let size = 1n;
  const mechanisms = degrees.map((degree, level) => {
    const { mechanism, noise, steps = 1n, ...more } = levelOf(level);
    return { mechanism, size: (size *= degree), noise, steps, ...more };
  });
  const plan = {
    format: 5n,
    horizon: 1_000_000n,
    values: { kind, clip: false },
    degrees,
    mechanisms,
    epsilon: 1.0,
    delta: 1e-6,
    shufflers: BigInt(degrees.length),
    honest: 1.0,
    reports: 1n,
    combine: true,
    hold: false,
  };
  return `${indented(
    mapped({
      version: 3n,
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
  const ballots = { mechanism: "ballots", noise: correlated, dummies: 152n, bound: 76n };
  const pairs = { mechanism: "pairs", noise: correlated, modulus_bits: 9n };
  const vector = { ...pairs, steps: 8192n, modulus_bits: 22n };
  const sixteen = (level) => ({ mechanism: "coins", noise: coins([6n, 2n, 2n, 2n][level]) });
  const services = (kind, mechanism) => documentOf(kind, [25n], () => mechanism);
  return [
    { name: "a bit by ballots", most: 30, value: 1, text: await services("bit", ballots) },
    { name: "a bit by pairs", most: 30, value: 1, text: await services("bit", pairs) },
    {
      name: "a bit by coins, 16 messages",
      most: 100,
      value: 1,
      text: await documentOf("bit", DEGREES, sixteen),
    },
    {
      name: "a 20-vector by pairs",
      most: 40,
      value: Array(20).fill(0.1),
      text: await services("vector:20", vector),
    },
    {
      name: "a histogram of 10,000 by pairs",
      most: 40,
      value: 4711,
      text: await services("histogram:10000", pairs),
    },
  ];
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(JSON.stringify(await cases()));
