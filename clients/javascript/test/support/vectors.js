/** The protocol's test vectors, and chance that repeats what was drawn for them. */

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import { concatenated, unhex } from "../../src/bytes.js";

const FOLDER = new URL(
  process.env.OVERHAND_VECTORS ?? "../../../../tests/vectors/",
  import.meta.url,
);

/** @param {string} name */
export function vectors(name) {
  return JSON.parse(readFileSync(new URL(`${name}.json`, FOLDER), "utf8"));
}

/** @param {string} text */
export function utf8(text) {
  return new TextEncoder().encode(text);
}

/**
 * The bytes that a report of the vectors was made of, in the order in which they are asked for.
 *
 * Words that coins are compared with are not in the vectors, only what coins showed: so 0 stands for
 * a word below the threshold and the largest word for one that is not.
 *
 * @param {any} report
 * @param {any[]} entries the plan's mechanisms
 */
export function chanceOf(report, entries) {
  const drawn = report.levels.flatMap((level, place) => [
    ...level.rounding.map((uniform) => word64(BigInt(uniform) << 11n)),
    ...(level.coins ?? []).map((coins) => words(coins, entries[place].noise)),
    unhex(level.seed ?? ""),
  ]);
  const stream = concatenated([...drawn, unhex(report.id)]);
  const materials = report.levels.flatMap((level) =>
    level.messages.map((_, place) => ephemeralMaterial(level.ephemeral, place)),
  );
  let [used, sealed] = [0, 0];
  return {
    random: (length) => {
      if (used + length > stream.length) throw new Error("more chance than the vector has");
      used += length;
      return stream.slice(used - length, used);
    },
    ephemeral: () => materials[sealed++],
    isUsedUp: () => used === stream.length && sealed === materials.length,
  };
}

/** The ikmE of a message by its place in its level. */
function ephemeralMaterial(ephemeral, place) {
  const number = Uint8Array.of(place >> 24, place >> 16, place >> 8, place);
  const digest = createHash("sha256").update(unhex(ephemeral)).update(number).digest();
  return Uint8Array.from(digest).buffer;
}

function words(coins, { bits, probability: [numerator, places], opposed }) {
  const tossed = coins.map((coin, i) => (opposed && 2 * i >= bits ? 1 - coin : coin));
  if (2 * numerator === 2 ** places) {
    const packed = new Uint8Array(Math.ceil(tossed.length / 8));
    tossed.forEach((coin, i) => (packed[i >> 3] |= coin << (7 - (i & 7))));
    return packed;
  }
  const width = places <= 16 ? 2 : places <= 32 ? 4 : 8;
  return concatenated(tossed.map((coin) => new Uint8Array(width).fill(coin ? 0 : 255)));
}

export function word64(number) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, number, true);
  return bytes;
}
