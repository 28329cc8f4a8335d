/** Checks that kinds of values have in common, and the words that say what is wrong. */

import { OverhandError } from "./errors.js";
import { pythonFloat } from "./json.js";

export const SMALLEST = 1e-100;
export const LARGEST = 1e100;
const MOST_SHOWN = 80;
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;

/** @param {string} why */
export function wrong(why) {
  return new OverhandError("value", why);
}

/**
 * A value in words, however long or strange it is.
 *
 * @param {unknown} value
 */
export function shown(value) {
  const isThing = Object(value) === value;
  const kind = Object.prototype.toString.call(value).slice(8, -1);
  const text = isThing
    ? `of type ${kind}`
    : typeof value === "string"
      ? JSON.stringify(value).replace(/^"|"$/g, "'")
      : String(value);
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}...` : text;
}

/**
 * All digits of a number, as Python's client shows them.
 *
 * @param {number} number
 */
export function spelt(number) {
  return Number.isFinite(number) ? pythonFloat(number).replace(/\.0$/, "") : String(number);
}

/**
 * Nine digits of a number.
 *
 * @param {number} number
 */
export function short(number) {
  return spelt(Number(number.toPrecision(9)));
}

/**
 * Whether all characters of a name can be seen, and there are neither too few nor too many.
 *
 * @param {string} name
 * @param {number} most
 */
export function isName(name, most) {
  const { length } = [...name];
  return length >= 1 && length <= most && !UNPRINTABLE.test(name);
}

/**
 * So many finite numbers.
 *
 * @param {unknown} value
 * @param {number} length
 * @param {string} what
 */
export function finite(value, length, what) {
  const numbers = arrayOf(value, length, what);
  for (const number of numbers) {
    if (typeof number !== "number" || !Number.isFinite(number)) {
      throw typeof number === "number"
        ? wrong(`value is not finite: ${number}`)
        : wrong(`value ${shown(number)} must be a number`);
    }
  }
  return Float64Array.from(/** @type {number[]} */ (numbers));
}

/**
 * A number of an interval, moved to its nearer end if `clip`.
 *
 * @param {unknown} value
 * @param {number} low
 * @param {number} high
 * @param {boolean} clip
 */
export function within(value, low, high, clip) {
  const [number] = finite([value], 1, "a number");
  if (!clip && (number < low || number > high)) {
    throw wrong(`value ${spelt(number)} is not between ${spelt(low)} and ${spelt(high)}`);
  }
  return Math.min(Math.max(number, low), high);
}

/**
 * A list of so many, or a typed array.
 *
 * @param {unknown} value
 * @param {number} length
 * @param {string} what
 * @returns {unknown[]}
 */
export function arrayOf(value, length, what) {
  const isList = Array.isArray(value) || (ArrayBuffer.isView(value) && "length" in value);
  const list = isList ? Array.from(/** @type {ArrayLike<unknown>} */ (value)) : [];
  if (!isList) throw wrong(`value ${shown(value)} must be ${what}`);
  if (list.length !== length) throw wrong(`a list of ${list.length} must be ${what}`);
  return list;
}

/**
 * Whether a word of a kind's name is a whole number in these bounds.
 *
 * @param {string | undefined} word
 * @param {number} least
 * @param {number} most
 * @returns {word is string}
 */
export function isCount(word, least, most) {
  return word !== undefined && /^[1-9]\d{0,8}$/.test(word) && +word >= least && +word <= most;
}

/**
 * The number that a word of a kind's name is, or NaN.
 *
 * @param {string} word
 */
export function numberOf(word) {
  return /^-?\d/.test(word) ? Number(word) : NaN;
}

/**
 * Whether two words of a kind's name are the ends of an interval.
 *
 * @param {string} low
 * @param {string} high
 */
export function isInterval(low, high) {
  const ends = [numberOf(low), numberOf(high)];
  return ends.every((end) => Math.abs(end) < LARGEST) && ends[1] - ends[0] >= SMALLEST;
}
