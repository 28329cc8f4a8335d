/** The kinds of values that users may hold: how each is checked, and its coordinates. */

import { binned, histogram } from "./buckets.js";
import {
  LARGEST,
  SMALLEST,
  arrayOf,
  finite,
  isCount,
  isInterval,
  numberOf,
  short,
  shown,
  within,
  wrong,
} from "./checks.js";
import { damaged } from "./fields.js";
import { grouped } from "./groups.js";
import { pythonFloat } from "./json.js";

const FORMS =
  "bit, real, real:LOW:HIGH, histogram:B, histogram:LABELS, histogram:LABELS:OTHER, " +
  "binned:LOW:HIGH:B, binned:EDGES, grouped:LABELS:bit, grouped:LABELS:real:LOW:HIGH, " +
  "vector:D, vector:D:NORM, matrix:D, matrix:D:NORM or regression:D";
const MOST_COORDINATES = 2 ** 20;
const MOST_SIDE = 2 ** 10;
export const TOLERANCE = 1e-6; // a norm too large by at most this part

/**
 * What one user may hold. `coordinates` checks a value; each coordinate lies between its low and
 * its high. If `isWhole`, all of them are 0 or 1, and nothing has to be rounded.
 *
 * @typedef {object} Kind
 * @property {string} spec as the plan spells it
 * @property {boolean} isWhole
 * @property {boolean} canClip
 * @property {number} dimension
 * @property {readonly string[] | undefined} [labels] of the buckets, if they have any
 * @property {(coordinate: number) => number} low
 * @property {(coordinate: number) => number} high
 * @property {(value: unknown) => Float64Array} coordinates
 * @property {Rounded} [rounded] coordinates in steps, if not each of them is rounded on its own
 */

/**
 * @typedef {(coordinates: Float64Array, unit: number, most: Float64Array,
 *   random: import("./randomness.js").Random) => Float64Array} Rounded
 */

/**
 * The kind that a plan names, or an error if it names none as a plan would.
 *
 * @param {string} spec
 * @param {boolean} clip whether values that are out of range are moved to its edge
 * @returns {Kind}
 */
export function kindOf(spec, clip) {
  const [name, ...words] = spec.split(":");
  const make = MAKERS[name];
  const kind = make?.(words, clip);
  if (kind === undefined || kind.spec !== spec)
    throw damaged(`values ${shown(spec)} must be ${FORMS}`);
  if (clip && !kind.canClip) throw damaged(`values ${shown(spec)} have no range to clip to`);
  return kind;
}

/** @type {Record<string, (words: string[], clip: boolean) => Kind | undefined>} */
const MAKERS = {
  __proto__: /** @type {any} */ (null),
  bit: (words) => (words.length === 0 ? bits() : undefined),
  binned,
  grouped: (words, clip) => grouped(words, ([name, ...rest]) => MAKERS[name](rest, clip)),
  histogram,
  real: ([low = "0.0", high = "1.0"], clip) =>
    isInterval(low, high) ? reals(+low, +high, clip) : undefined,
  vector: ([length, norm = "1.0"], clip) =>
    isCount(length, 1, MOST_COORDINATES) && isNorm(norm)
      ? vectors(+length, +norm, clip)
      : undefined,
  matrix: ([side, norm = "1.0"], clip) =>
    isCount(side, 1, MOST_SIDE) && isNorm(norm) ? matrices(+side, +norm, clip) : undefined,
  regression: ([features], clip) =>
    isCount(features, 1, MOST_SIDE) ? regression(+features, clip) : undefined,
};

/** @returns {Kind} */
function bits() {
  return {
    ...scalar("bit", 0, 1),
    isWhole: true,
    coordinates(value) {
      if (value !== 0 && value !== 1 && value !== true && value !== false) {
        throw wrong(`value ${shown(value)} is not a bit (0 or 1)`);
      }
      return Float64Array.of(Number(value));
    },
  };
}

/**
 * @param {number} low
 * @param {number} high
 * @param {boolean} clip
 * @returns {Kind}
 */
function reals(low, high, clip) {
  const isUnit = low === 0 && high === 1;
  const spec = isUnit ? "real" : `real:${pythonFloat(low)}:${pythonFloat(high)}`;
  return {
    ...scalar(spec, low, high),
    canClip: true,
    coordinates: (value) => Float64Array.of(within(value, low, high, clip)),
  };
}

/**
 * @param {string} spec
 * @param {number} low
 * @param {number} high
 */
function scalar(spec, low, high) {
  const ends = { low: () => low, high: () => high };
  return { spec, isWhole: false, canClip: false, dimension: 1, ...ends };
}

/**
 * @param {number} length
 * @param {number} norm
 * @param {boolean} clip
 * @returns {Kind}
 */
function vectors(length, norm, clip) {
  return {
    ...ball(`vector:${length}`, length, norm),
    coordinates: (value) =>
      bounded(finite(value, length, `a vector of ${length} numbers`), norm, clip),
  };
}

/**
 * @param {number} side
 * @param {number} norm
 * @param {boolean} clip
 * @returns {Kind}
 */
function matrices(side, norm, clip) {
  return {
    ...ball(`matrix:${side}`, (side * (side + 1)) / 2, norm),
    coordinates(value) {
      const what = `${side} rows of ${side} numbers`;
      const rows = arrayOf(value, side, what)
        .map((row) => arrayOf(row, side, what))
        .flat();
      const whole = bounded(finite(rows, side * side, what), norm, clip);
      const mirrored = whole.map(
        (_, place) => whole[(place % side) * side + Math.floor(place / side)],
      );
      if (whole.some((entry, place) => Math.abs(entry - mirrored[place]) > TOLERANCE * norm)) {
        throw wrong("the matrix is not symmetric");
      }
      return triangle(side, (i, j) => (whole[i * side + j] + mirrored[i * side + j]) / 2);
    },
  };
}

/**
 * A row (x, y) as x y and x x^T, which a linear regression adds up.
 *
 * @param {number} features
 * @param {boolean} clip
 * @returns {Kind}
 */
function regression(features, clip) {
  const highs = triangle(features, (i, j) => (i === j ? 1 : 0.5));
  const diagonal = triangle(features, (i, j) => Number(i === j));
  const high = (/** @type {number} */ j) => (j < features ? 1 : highs[j - features]);
  const low = (/** @type {number} */ j) => (diagonal[j - features] ? 0 : -high(j));
  return {
    ...scalar(`regression:${features}`, 0, 0),
    low,
    high,
    canClip: true,
    dimension: features + highs.length,
    coordinates(value) {
      const row = finite(value, features + 1, `${features} features and a response`);
      const x = bounded(row.subarray(0, features), 1, clip);
      const [y] = bounded(row.subarray(features), 1, clip, { name: "a response of size" });
      return joined(x, y);
    },
  };
}

/**
 * The moments of features and a response that were checked.
 *
 * @param {Float64Array} x
 * @param {number} y
 */
export function joined(x, y) {
  const products = triangle(x.length, (i, j) => x[i] * x[j]);
  const both = new Float64Array(x.length + products.length);
  both.set(x.map((one) => one * y));
  both.set(products, x.length);
  return both;
}

/**
 * @param {string} spec
 * @param {number} dimension
 * @param {number} norm
 */
function ball(spec, dimension, norm) {
  const whole = norm === 1 ? spec : `${spec}:${pythonFloat(norm)}`;
  return { ...scalar(whole, -norm, norm), canClip: true, dimension };
}

/**
 * The upper triangle of a symmetric matrix, row by row, its off-diagonal entries multiplied by
 * sqrt(2): l2 distances of such vectors are Frobenius distances of the matrices.
 *
 * @param {number} side
 * @param {(i: number, j: number) => number} entry
 */
function triangle(side, entry) {
  const packed = new Float64Array((side * (side + 1)) / 2);
  let place = 0;
  for (let i = 0; i < side; i++) {
    packed[place++] = entry(i, i);
    for (let j = i + 1; j < side; j++) packed[place++] = entry(i, j) * Math.SQRT2;
  }
  return packed;
}

/**
 * The vector with an l2 norm of at most `bound`.
 *
 * @param {Float64Array} vector
 * @param {number} bound
 * @param {boolean} clip
 * @param {{ name?: string, tolerance?: number }} [how] what the norm is called, and what part more
 *   is taken for a rounding error
 */
export function bounded(vector, bound, clip, { name = "norm", tolerance = TOLERANCE } = {}) {
  const length = normOf(vector);
  if (length <= bound) return vector;
  const largest = vector.reduce((most, one) => Math.max(most, Math.abs(one)), 0);
  const scaled = vector.map((one) => one / largest);
  const norm = normOf(scaled);
  if (length > bound * (1 + tolerance) && !clip) {
    throw wrong(`value has ${name} ${short(largest * norm)}, above ${short(bound)}`);
  }
  return scaled.map((one) => one * (bound / norm));
}

/** @param {Float64Array} vector */
export function normOf(vector) {
  return Math.sqrt(vector.reduce((sum, one) => sum + one * one, 0));
}

/** @param {string} word */
function isNorm(word) {
  return numberOf(word) > SMALLEST && numberOf(word) < LARGEST;
}
