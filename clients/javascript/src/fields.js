/** Reading the fields of a document: each is there, in its place, and of the right type. */

import { shown } from "./checks.js";
import { OverhandError } from "./errors.js";

/** @typedef {import("./json.js").Json} Json */

/** @param {string} why */
export function damaged(why) {
  return new OverhandError("document", `this is not a document: ${why}`);
}

/**
 * An object with these fields and no other, in this order.
 *
 * @param {string} name
 * @param {Json} value
 * @param {string[]} fields
 * @returns {{ [name: string]: Json }}
 */
export function object(name, value, fields) {
  if (!(value instanceof Map)) throw damaged(`${name} is not an object`);
  const found = [...value.keys()];
  if (found.length !== fields.length || found.some((field, i) => field !== fields[i])) {
    throw damaged(`${name} has the fields ${found.join(", ")}, and not ${fields.join(", ")}`);
  }
  return Object.fromEntries(value);
}

/**
 * What a field of an object is, or null if there is none.
 *
 * @param {Json} value
 * @param {string} field
 */
export function contentOf(value, field) {
  return (value instanceof Map ? value.get(field) : undefined) ?? null;
}

/**
 * @param {string} name
 * @param {Json} value
 */
export function array(name, value) {
  if (!Array.isArray(value)) throw damaged(`${name} is not a list`);
  return value;
}

/**
 * A whole number: exact, if it is below 2^53.
 *
 * @param {string} name
 * @param {Json} value
 * @param {number | bigint} least
 * @param {number | bigint} [most]
 */
export function whole(name, value, least, most) {
  const limit = most ?? Number.MAX_SAFE_INTEGER;
  if (typeof value !== "bigint" || value < least || value > limit) {
    const isLarge = typeof value === "bigint" && value > limit;
    const isOpen = most === undefined && !isLarge;
    const bounds = isOpen ? `of at least ${least}` : `from ${least} to ${limit}`;
    throw damaged(`${name}=${shown(value)} must be a whole number ${bounds}`);
  }
  return Number(value);
}

/**
 * @param {string} name
 * @param {Json} value
 * @param {number} above
 * @param {number} [below]
 */
export function real(name, value, above, below = Infinity) {
  if (typeof value !== "number" || !(value > above && value < below)) {
    const bounds = below === Infinity ? `above ${above}` : `between ${above} and ${below}`;
    throw damaged(`${name}=${shown(value)} must be ${bounds}`);
  }
  return value;
}

/**
 * @param {string} name
 * @param {Json} value
 */
export function flag(name, value) {
  if (typeof value !== "boolean") throw damaged(`${name}=${shown(value)} must be true or false`);
  return value;
}

/**
 * @param {string} name
 * @param {Json} value
 */
export function string(name, value) {
  if (typeof value !== "string") throw damaged(`${name} is not a string`);
  return value;
}

/**
 * Lower-case hexadecimal digits, two for a byte.
 *
 * @param {string} name
 * @param {Json} value
 * @param {number} bytes
 */
export function digits(name, value, bytes) {
  const text = string(name, value);
  if (text.length !== 2 * bytes || !/^[0-9a-f]*$/.test(text)) {
    throw damaged(`${name} is not ${bytes} bytes in hexadecimal digits`);
  }
  return text;
}
