/** The plan of a document: what its levels send, every field of it checked. */

import { shown } from "./checks.js";
import { OverhandError } from "./errors.js";
import { array, contentOf, damaged, flag, object, real, string, whole } from "./fields.js";
import { ballotSum, coinSum, pairsSum } from "./mechanisms.js";
import { kindOf } from "./values.js";

const FORMAT = 4;
const FIELDS = [
  "format",
  "horizon",
  "values",
  "degrees",
  "mechanisms",
  "epsilon",
  "delta",
  "shufflers",
  "honest",
  "reports",
  "combine",
  "hold",
];
const MOST_LEVELS = 255;
const MOST_SIZE = 2 ** 32 - 1;
const MOST_MODULUS_BITS = 48;
const MOST_FRACTION_BITS = 64;
const MOST_REPORTS = 1000;
const MOST_SHAPE = 2 ** 10;
const MOST_STEPS = 2 ** 20;
const EXPONENT = "(?:[1-9]\\d{0,2}|10[01]\\d|102[0-2])";
const RATIO = new RegExp(`^0x(?:1\\.[0-9a-f]{13}p-${EXPONENT}|0\\.(?!0{13})[0-9a-f]{13}p-1022)$`);

/** @typedef {import("./json.js").Json} Json */
/** @typedef {import("./values.js").Kind} Kind */
/** @typedef {import("./mechanisms.js").Mechanism} Mechanism */
/** @typedef {import("./mechanisms.js").Coins} Coins */

/**
 * @typedef {object} Plan
 * @property {number} horizon how many users it serves
 * @property {Kind} kind what they may hold
 * @property {boolean} clip whether what is out of range is moved to its edge
 * @property {"users" | "services"} noiseBy who makes the noise
 * @property {number} epsilon
 * @property {number} delta
 * @property {number} reports how many one person may make
 * @property {Mechanism[]} levels lowest first
 */

/**
 * Who makes the noise, and its coins if it is made of these.
 *
 * @typedef {{ by: "users" | "services", coins?: Coins | undefined, bound: number | null }} Noise
 */

/**
 * @param {Json} saved
 * @returns {Plan}
 */
export function planOf(saved) {
  const fields = object("plan", saved, FIELDS);
  if (fields.format !== BigInt(FORMAT)) {
    throw damaged(`the format is ${shown(fields.format)}, not ${FORMAT}`);
  }
  const horizon = whole("horizon", fields.horizon, 1);
  const values = object("plan.values", fields.values, ["kind", "clip"]);
  const clip = flag("clip", values.clip);
  const kind = kindOf(string("plan.values.kind", values.kind), clip);
  const sizes = sizesOf(fields.degrees, horizon);
  const entries = array("plan.mechanisms", fields.mechanisms);
  if (entries.length !== sizes.length) {
    throw damaged(`${entries.length} mechanisms for ${sizes.length} levels`);
  }
  const levels = entries.map((entry, level) => levelOf(level + 1, entry, kind, sizes[level]));
  const [{ noiseBy }] = levels;
  if (levels.some((level) => level.noiseBy !== noiseBy)) {
    throw damaged("either users or services must make the noise, at all levels");
  }
  whole("shufflers", fields.shufflers, 1);
  checkHonest(fields.honest);
  flag("combine", fields.combine);
  flag("hold", fields.hold);
  return {
    horizon,
    kind,
    clip,
    noiseBy,
    epsilon: real("epsilon", fields.epsilon, 0),
    delta: real("delta", fields.delta, 0, 1),
    reports: whole("reports", fields.reports, 1, MOST_REPORTS),
    levels: levels.map((level) => level.made()),
  };
}

/**
 * A fraction of the users, which may be all of them.
 *
 * @param {Json} honest
 */
function checkHonest(honest) {
  if (typeof honest !== "number" || !(honest > 0 && honest <= 1)) {
    throw damaged(`honest=${shown(honest)} must be above 0 and at most 1`);
  }
}

/**
 * How many users the batches of each level have.
 *
 * @param {Json} degrees
 * @param {number} horizon
 */
function sizesOf(degrees, horizon) {
  /** @type {number[]} */
  const sizes = [];
  let size = 1;
  for (const [place, degree] of array("plan.degrees", degrees).entries()) {
    size *= whole(`degree ${place + 1}`, degree, place === 0 ? 1 : 2, MOST_SIZE);
    if (size > horizon || size > MOST_SIZE) throw damaged(`batches of ${size} users are too large`);
    sizes.push(size);
  }
  if (sizes.length < 1 || sizes.length > MOST_LEVELS) throw damaged(`${sizes.length} levels`);
  return sizes;
}

/**
 * A level, and how to make it: what is wrong with a document comes before what is not supported.
 *
 * @param {number} level
 * @param {Json} saved
 * @param {Kind} kind
 * @param {number} size
 * @returns {{ noiseBy: "users" | "services", made: () => Mechanism }}
 */
function levelOf(level, saved, kind, size) {
  const here = `the mechanism of level ${level}`;
  const name = string(here, contentOf(saved, "mechanism"));
  const more = new Map(Object.entries(MORE_FIELDS)).get(name);
  if (more === undefined) {
    throw damaged(`mechanism ${shown(name)} is not one of ${Object.keys(MORE_FIELDS).join(", ")}`);
  }
  const entry = object(here, saved, ["mechanism", "size", "noise", "steps", ...more]);
  if (entry.size !== BigInt(size)) {
    throw damaged(`${here} is for batches of ${shown(entry.size)} users, not of ${size}`);
  }
  const steps = whole("steps", entry.steps, 1, MOST_STEPS);
  if (kind.isWhole && steps !== 1) throw damaged(`steps=${steps} must be 1 for ${kind.spec}`);
  const noise = noiseOf(`the noise of level ${level}`, entry.noise);
  if (name === "coins") {
    const coins = noise.by === "users" ? noise.coins : undefined;
    if (coins === undefined) throw damaged("the noise of coins must be Coins");
    return { noiseBy: "users", made: () => coinSum(kind, steps, coins) };
  }
  if (name === "ballots") {
    checkBallots(entry, kind, noise);
    return { noiseBy: "services", made: () => ballotSum(kind) };
  }
  const bits = whole("modulus_bits", entry.modulus_bits, 1, MOST_MODULUS_BITS);
  if (noise.coins?.opposed === false) throw damaged(`the coins of ${name} must be opposed`);
  if (name === "shares") checkShares(entry, noise);
  const isPlain = name === "pairs" && noise.by === "services";
  return { noiseBy: noise.by, made: () => (isPlain ? pairsSum(kind, steps, bits) : refused(name)) };
}

/** What an entry has beside size, noise and steps, by its mechanism. */
const MORE_FIELDS = {
  coins: [],
  shares: ["modulus_bits", "shares", "honest"],
  pairs: ["modulus_bits"],
  ballots: ["dummies"],
};

/**
 * @param {string} name
 * @returns {never}
 */
function refused(name) {
  throw new OverhandError(
    "unsupported",
    `this plan sends ${name} with noise of the users' own, and this client draws no noise but ` +
      "coins: make the plan with --noise services, or with --mechanism coins",
  );
}

/**
 * @param {{ [name: string]: Json }} entry
 * @param {Kind} kind
 * @param {Noise} noise
 */
function checkBallots(entry, kind, noise) {
  if (!kind.isWhole) throw damaged(`ballots are for bits and histograms, not for ${kind.spec}`);
  if (noise.by !== "services" || noise.bound === null) {
    throw damaged("ballots need bounded noise, made by the services");
  }
  const least = kind.dimension * noise.bound;
  whole("dummies", entry.dummies, least, 2 * least);
}

/**
 * @param {{ [name: string]: Json }} entry
 * @param {Noise} noise
 */
function checkShares(entry, noise) {
  if (noise.by === "services") throw damaged("shares cannot have noise made by the services");
  whole("shares", entry.shares, 2);
  whole("honest", entry.honest, 1);
}

/**
 * @param {string} name
 * @param {Json} saved
 * @returns {Noise}
 */
function noiseOf(name, saved) {
  if (saved instanceof Map && saved.has("each_service")) {
    const { each_service, bound } = object(name, saved, ["each_service", "bound"]);
    const { coins, shape } = partOf(name, each_service);
    if (bound === null) return { by: "services", coins, bound };
    if (shape === undefined) throw damaged("only Laplace noise is bounded");
    if (!Number.isInteger(shape)) throw damaged(`the law of shape ${shape} is not tabulated`);
    return { by: "services", bound: whole("bound", bound, 1) };
  }
  return { by: "users", bound: null, coins: partOf(name, saved).coins };
}

/**
 * Coins, or the shape of what one maker adds of Laplace noise.
 *
 * @param {string} name
 * @param {Json} saved
 * @returns {{ coins?: Coins, shape?: number }}
 */
function partOf(name, saved) {
  if (saved instanceof Map && saved.has("ratio")) {
    const { shape, users, ratio } = object(name, saved, ["shape", "users", "ratio"]);
    const part = whole("shape", shape, 1, MOST_SHAPE) / whole("users", users, 1);
    if (!RATIO.test(string(`the ratio of ${name}`, ratio))) {
      throw damaged(`the ratio of ${name} is not a number between 0 and 1`);
    }
    return { shape: part };
  }
  const fields = object(name, saved, ["bits", "probability", "opposed"]);
  const opposed = flag(`opposed of ${name}`, fields.opposed);
  const bits = whole("noise_bits", fields.bits, 0);
  if (opposed && bits % 2 === 1) throw damaged(`noise_bits=${bits} must be even if opposed`);
  return { coins: { bits, opposed, probability: fractionOf(name, fields.probability) } };
}

/**
 * @param {string} name
 * @param {Json} saved
 */
function fractionOf(name, saved) {
  const [numerator, bits, ...more] = array(`the probability of ${name}`, saved);
  const places = whole(`the bits of ${name}`, bits ?? null, 1, MOST_FRACTION_BITS);
  const isInside =
    typeof numerator === "bigint" && numerator > 0n && numerator < 1n << BigInt(places);
  if (!isInside || more.length > 0) throw damaged(`the probability of ${name} is none`);
  return { numerator, bits: places };
}
