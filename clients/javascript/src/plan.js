/** The plan of a document: what its levels send, every field of it checked. */

import { shown, spelt } from "./checks.js";
import { OverhandError } from "./errors.js";
import { array, contentOf, damaged, flag, object, real, string, whole } from "./fields.js";
import { ballotSum, coinSum, pairsSum } from "./mechanisms.js";
import { kindOf } from "./values.js";

const FORMAT = 5;
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
const MOST_ROTATIONS = 16;
const MOST_FACTOR = 2 ** 7;
const MOST_SHIFT = 40;
const MOST_GAIN = 16n;
const MOST_WEIGHT = 2n;
const FEWEST_UNITS = 2 ** 16;
const MOST_UNITS = 2n ** 62n;
const EXPONENT = "(?:[1-9]\\d{0,2}|10[01]\\d|102[0-2])";
const RATIO = new RegExp(`^0x(?:1\\.[0-9a-f]{13}p-${EXPONENT}|0\\.(?!0{13})[0-9a-f]{13}p-1022)$`);

/** @typedef {import("./json.js").Json} Json */
/** @typedef {import("./values.js").Kind} Kind */
/** @typedef {import("./mechanisms.js").Mechanism} Mechanism */
/** @typedef {import("./mechanisms.js").Coins} Coins */

/**
 * @typedef {object} Plan
 * @property {number} horizon how many users are expected: of services' noise more may come
 * @property {Kind} kind what they may hold
 * @property {boolean} clip whether what is out of range is moved to its edge
 * @property {"users" | "services"} noiseBy who makes the noise
 * @property {number} epsilon
 * @property {number} delta
 * @property {number} reports how many one person may make
 * @property {Mechanism[]} levels lowest first
 */

/**
 * Who makes the noise; of users' its coins, if it is made of these, and of services' how many blocks
 * there may be.
 *
 * @typedef {{ by: "users", coins?: Coins } | { by: "services", cap: number }} Noise
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
  const services = levels.find((level) => level.noise.by === "services");
  if (services?.noise.by === "services") {
    if (levels.length > 1) throw damaged("services make the noise of one level, not of a tree");
    whole("horizon", fields.horizon, 1, BigInt(services.noise.cap) * BigInt(sizes[0]));
  }
  whole("shufflers", fields.shufflers, 1);
  checkHonest(fields.honest);
  flag("combine", fields.combine);
  flag("hold", fields.hold);
  return {
    horizon,
    kind,
    clip,
    noiseBy: levels[0].noise.by,
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
 * @returns {{ noise: Noise, made: () => Mechanism }}
 */
function levelOf(level, saved, kind, size) {
  const here = `the mechanism of level ${level}`;
  const name = string(here, contentOf(saved, "mechanism"));
  const due = new Map(Object.entries(MECHANISMS)).get(name);
  if (due === undefined) {
    throw damaged(`mechanism ${shown(name)} is not one of ${Object.keys(MECHANISMS).join(", ")}`);
  }
  const entry = object(here, saved, ["mechanism", "size", "noise", "steps", ...due.more]);
  if (entry.size !== BigInt(size)) {
    throw damaged(`${here} is for batches of ${shown(entry.size)} users, not of ${size}`);
  }
  const steps = whole("steps", entry.steps, 1, MOST_STEPS);
  if (kind.isWhole && steps !== 1) throw damaged(`steps=${steps} must be 1 for ${kind.spec}`);
  const noise = noiseOf(`the noise of level ${level}`, entry.noise);
  if (noise.by !== due.by) throw damaged(`${name} cannot have noise made by the ${noise.by}`);
  return { noise, made: due.check(entry, kind, steps, noise) };
}

/**
 * Of every mechanism who makes its noise, what an entry has beside size, noise and steps, and how
 * these are checked.
 *
 * @type {{ [name: string]: { by: "users" | "services", more: string[], check: Check } }}
 */
const MECHANISMS = {
  coins: {
    by: "users",
    more: [],
    check(entry, kind, steps, noise) {
      const coins = noise.by === "users" ? noise.coins : undefined;
      if (coins === undefined) throw damaged("the noise of coins must be Coins");
      return () => coinSum(kind, steps, coins);
    },
  },
  shares: {
    by: "users",
    more: ["modulus_bits", "shares", "honest"],
    check(entry, kind, steps, noise) {
      modulusOf(entry);
      const coins = noise.by === "users" ? noise.coins : undefined;
      if (coins?.opposed === false) throw damaged("the coins of shares must be opposed");
      whole("shares", entry.shares, 2);
      whole("honest", entry.honest, 1);
      return refused;
    },
  },
  pairs: {
    by: "services",
    more: ["modulus_bits"],
    check(entry, kind, steps) {
      const bits = modulusOf(entry);
      return () => pairsSum(kind, steps, bits);
    },
  },
  ballots: {
    by: "services",
    more: ["dummies", "bound"],
    check(entry, kind) {
      if (!kind.isWhole) throw damaged(`ballots are for bits and histograms, not for ${kind.spec}`);
      whole("dummies", entry.dummies, kind.dimension * whole("bound", entry.bound, 1));
      return () => ballotSum(kind);
    },
  },
};

/**
 * @typedef {(entry: { [name: string]: Json }, kind: Kind, steps: number, noise: Noise) =>
 *   () => Mechanism} Check
 */

/** @param {{ [name: string]: Json }} entry */
function modulusOf(entry) {
  return whole("modulus_bits", entry.modulus_bits, 1, MOST_MODULUS_BITS);
}

/** @returns {never} */
function refused() {
  throw new OverhandError(
    "unsupported",
    "this plan sends shares, and this client draws no noise but coins: make the plan with " +
      "--mechanism services, or with --mechanism coins",
  );
}

/**
 * @param {string} name
 * @param {Json} saved
 * @returns {Noise}
 */
function noiseOf(name, saved) {
  if (saved instanceof Map && saved.has("step")) {
    const { step, rotations, cap } = object(name, saved, ["step", "rotations", "cap"]);
    const blocks = whole("cap", cap, 1);
    whole("step", step, FEWEST_UNITS, MOST_UNITS);
    const most = MOST_GAIN * BigInt(/** @type {bigint} */ (step));
    checkRotations(array(`the rotations of ${name}`, rotations), most);
    return { by: "services", cap: blocks };
  }
  if (saved instanceof Map && saved.has("each_service")) {
    const { each_service, cap } = object(name, saved, ["each_service", "cap"]);
    if (partOf(name, each_service) !== undefined) {
      throw damaged("independent noise of services is Laplace noise");
    }
    return { by: "services", cap: whole("cap", cap, 1) };
  }
  const coins = partOf(name, saved);
  return coins === undefined ? { by: "users" } : { by: "users", coins };
}

/**
 * A filter, whose poles are 1 - sine tangent / 2^(sine_bits + tangent_bits): below 1, above 0, and no
 * two of them alike.
 *
 * @param {Json[]} rotations
 * @param {bigint} mostGain
 */
function checkRotations(rotations, mostGain) {
  whole("the number of rotations", BigInt(rotations.length), 1, MOST_ROTATIONS);
  const lacks = new Set();
  for (const rotation of rotations) {
    const numbers = array("a rotation", rotation);
    if (numbers.length !== 5) throw damaged(`a rotation of ${numbers.length} numbers, not of 5`);
    whole("sine", numbers[0], 1, MOST_FACTOR);
    whole("sine_bits", numbers[1], 0, MOST_SHIFT);
    whole("tangent", numbers[2], 1, MOST_FACTOR);
    whole("tangent_bits", numbers[3], 0, MOST_SHIFT);
    whole("gain", numbers[4], -mostGain, mostGain);
    const [sine, sineBits, tangent, tangentBits] = /** @type {bigint[]} */ (numbers);
    const lack = Number(sine * tangent) * 2 ** -Number(sineBits + tangentBits); // exact
    if (lack >= 1) throw damaged(`a pole of ${sixDigits(1 - lack)} is not in (0, 1)`);
    lacks.add(lack);
    // The weight of a register is s (2 - s t) / t, s and t being the sine and the tangent.
    const weight = (sine << tangentBits) * ((2n << (sineBits + tangentBits)) - sine * tangent);
    const one = tangent << (2n * sineBits + tangentBits);
    if (weight > MOST_WEIGHT * one || MOST_WEIGHT * weight < one) {
      const near = sixDigits(Number(weight) / Number(one));
      throw damaged(`the weight of a register, ${near}, is not near 1`);
    }
  }
  if (lacks.size < rotations.length) throw damaged("two rotations have the same pole");
}

/** @param {number} number */
function sixDigits(number) {
  return spelt(Number(number.toPrecision(6)));
}

/**
 * The coins of one user, or nothing if it is Laplace noise.
 *
 * @param {string} name
 * @param {Json} saved
 * @returns {Coins | undefined}
 */
function partOf(name, saved) {
  if (saved instanceof Map && saved.has("ratio")) {
    const { shape, users, ratio } = object(name, saved, ["shape", "users", "ratio"]);
    whole("shape", shape, 1, MOST_SHAPE);
    whole("users", users, 1);
    if (!RATIO.test(string(`the ratio of ${name}`, ratio))) {
      throw damaged(`the ratio of ${name} is not a number between 0 and 1`);
    }
    return undefined;
  }
  const fields = object(name, saved, ["bits", "probability", "opposed"]);
  const opposed = flag(`opposed of ${name}`, fields.opposed);
  const bits = whole("noise_bits", fields.bits, 0);
  if (opposed && bits % 2 === 1) throw damaged(`noise_bits=${bits} must be even if opposed`);
  return { bits, opposed, probability: fractionOf(name, fields.probability) };
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
