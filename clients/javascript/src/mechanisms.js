/**
 * What a user sends at one level: messages that are sealed, and numbers in the clear.
 *
 * Coins are the only noise that is drawn here. Ballots and pairs leave it to the services, and shares
 * are refused where the document is read.
 */

import { concatenated, sha256, toBytes, toNumbers } from "./bytes.js";
import { coins, uniforms } from "./randomness.js";

const FLOAT_MARGIN = 1e-9;
const SEED_BYTES = 16;
const KEY_BYTES = 16;

/**
 * The coins of one user and coordinate. If `opposed`, half of them show 1 with `probability`, and
 * half with its complement.
 *
 * @typedef {object} Coins
 * @property {number} bits how many
 * @property {import("./randomness.js").BinaryFraction} probability
 * @property {boolean} opposed
 */

/**
 * @typedef {object} Encoded
 * @property {Uint8Array[]} messages plaintexts, to be sealed one by one
 * @property {Uint8Array} clear numbers that the shuffling service adds up
 */

/**
 * How one level is encoded, and the lengths that follow from it.
 *
 * @typedef {object} Mechanism
 * @property {number} messages of one user
 * @property {number} messageBits
 * @property {number} clearNumbers
 * @property {number} clearBits
 * @property {(coordinates: Float64Array, random: Random, context: Uint8Array) =>
 *   Encoded | Promise<Encoded>} encode all chance is drawn before it returns
 */

/** @typedef {import("./values.js").Kind} Kind */
/** @typedef {import("./randomness.js").Random} Random */

/**
 * Every user sends, for every coordinate, its steps as ones and zeros, and its coins. A message of
 * coordinate j is 2 j + its bit.
 *
 * @param {Kind} kind
 * @param {number} steps
 * @param {Coins} noise
 * @returns {Mechanism}
 */
export function coinSum(kind, steps, noise) {
  const most = coordinateSteps(kind, steps);
  const messageBits = bitLength(2 * kind.dimension - 1);
  const width = Math.ceil(messageBits / 8);
  return {
    messages: most.reduce((sum, one) => sum + one + noise.bits, 0),
    messageBits,
    clearNumbers: 0,
    clearBits: 0,
    encode(coordinates, random) {
      const own = stepsOf(kind, steps, coordinates, random);
      /** @type {Uint8Array[]} */
      const messages = [];
      for (let j = 0; j < own.length; j++) {
        const send = (/** @type {number} */ bit) => messages.push(toBytes([2 * j + bit], width));
        for (let i = 0; i < most[j]; i++) send(i < own[j] ? 1 : 0);
        tossed(noise, random).forEach(send);
      }
      return { messages, clear: new Uint8Array() };
    },
  };
}

/**
 * The coins of one coordinate, as they are sent.
 *
 * @param {Coins} noise
 * @param {Random} random
 */
function tossed(noise, random) {
  const shown = coins(random, noise.bits, noise.probability);
  if (!noise.opposed) return shown;
  // A coin of probability p shows 0 with 1 - p.
  return shown.map((coin, place) => (2 * place < noise.bits ? coin : 1 - coin));
}

/**
 * A user sends the number of its bucket, from 1 on; of a bit, the bit.
 *
 * @param {Kind} kind of whole values
 * @returns {Mechanism}
 */
export function ballotSum(kind) {
  const messageBits = bitLength(kind.dimension);
  return {
    messages: 1,
    messageBits,
    clearNumbers: 0,
    clearBits: 0,
    encode(coordinates) {
      const ballot = coordinates.indexOf(1) + 1; // a 0 is a blank
      return { messages: [toBytes([ballot], Math.ceil(messageBits / 8))], clear: new Uint8Array() };
    },
  };
}

/**
 * A user seals a seed for the server, and sends its steps, masked, in the clear.
 *
 * The masks are what the seed is stretched to: little-endian numbers of as many bytes as the modulus
 * needs, of which higher bits than those of the modulus do not count.
 *
 * @param {Kind} kind
 * @param {number} steps
 * @param {number} modulusBits at most 48: all sums below are exact
 * @returns {Mechanism}
 */
export function pairsSum(kind, steps, modulusBits) {
  const modulus = 2 ** modulusBits;
  const width = Math.ceil(modulusBits / 8);
  return {
    messages: 1,
    messageBits: 8 * SEED_BYTES,
    clearNumbers: kind.dimension,
    clearBits: modulusBits,
    async encode(coordinates, random, context) {
      const own = stepsOf(kind, steps, coordinates, random);
      const seed = random(SEED_BYTES);
      const masks = toNumbers(await stretched(context, seed, kind.dimension * width), width);
      const masked = own.map((step, j) => (((step - masks[j]) % modulus) + modulus) % modulus);
      return { messages: [seed], clear: toBytes(masked, width) };
    },
  };
}

/**
 * So many bytes of AES-128 in counter mode, from 0 on, under a key made of context and seed.
 *
 * @param {Uint8Array} context the level's
 * @param {Uint8Array} seed
 * @param {number} length
 */
async function stretched(context, seed, length) {
  const digest = await sha256(concatenated([context, seed]));
  const raw = digest.subarray(0, KEY_BYTES);
  const key = await crypto.subtle.importKey("raw", raw, "AES-CTR", false, ["encrypt"]);
  const start = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new Uint8Array(await crypto.subtle.encrypt(start, key, new Uint8Array(length)));
}

/**
 * How many steps each coordinate has: the widest has `steps`.
 *
 * @param {Kind} kind
 * @param {number} steps
 */
export function coordinateSteps(kind, steps) {
  if (kind.isWhole) return new Float64Array(kind.dimension).fill(1);
  const unit = unitOf(kind, steps);
  return new Float64Array(kind.dimension).map((_, j) =>
    Math.ceil(((kind.high(j) - kind.low(j)) / unit) * (1 - FLOAT_MARGIN)),
  );
}

/**
 * What one step is worth.
 *
 * @param {Kind} kind
 * @param {number} steps
 */
function unitOf(kind, steps) {
  let width = 0;
  for (let j = 0; j < kind.dimension; j++) width = Math.max(width, kind.high(j) - kind.low(j));
  return width / steps;
}

/**
 * Coordinates in steps: as they are if they are whole, else rounded at random.
 *
 * @param {Kind} kind
 * @param {number} steps
 * @param {Float64Array} coordinates
 * @param {Random} random
 */
function stepsOf(kind, steps, coordinates, random) {
  if (kind.isWhole) return coordinates;
  const unit = unitOf(kind, steps);
  const most = coordinateSteps(kind, steps);
  if (kind.rounded) return kind.rounded(coordinates, unit, most, random);
  const chance = uniforms(random, coordinates.length);
  return coordinates.map((coordinate, j) => {
    const rounded = Math.floor((coordinate - kind.low(j)) / unit + chance[j]);
    return Math.min(Math.max(rounded, 0), most[j]);
  });
}

/** @param {number} number */
function bitLength(number) {
  return number.toString(2).length;
}
