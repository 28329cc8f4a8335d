/** Values in groups: a user is in one group and holds one number. */

import { areLabels, placesOf, spelled } from "./buckets.js";
import { arrayOf } from "./checks.js";
import { uniforms } from "./randomness.js";

/** @typedef {import("./values.js").Kind} Kind */

/**
 * `grouped:LABEL,LABEL,...:NUMBER`, or the same with `:LABEL` for all others before the number,
 * which is `bit`, `real` or `real:LOW:HIGH`.
 *
 * A number is divided between the cells "high" and "low" of its group, as it lies between the two
 * ends. Coordinates are the high cells of all groups, and then the low ones.
 *
 * @param {string[]} words
 * @param {(words: string[]) => Kind | undefined} numberOf
 * @returns {Kind | undefined}
 */
export function grouped(words, numberOf) {
  const isNumber = (/** @type {string | undefined} */ word) => word === "bit" || word === "real";
  const start = isNumber(words[1]) ? 1 : 2;
  const other = start === 2 ? words[1] : undefined;
  const of = isNumber(words[start]) ? numberOf(words.slice(start)) : undefined;
  const listed = words[0]?.split(",") ?? [];
  const labels = other === undefined ? listed : [...listed, other];
  if (of === undefined || !areLabels(labels, other)) return undefined;
  const groups = labels.length;
  const placeOf = placesOf(labels, other);
  return {
    spec: `grouped:${spelled(labels, other)}:${of.spec}`,
    dimension: 2 * groups,
    isWhole: of.isWhole,
    canClip: of.canClip,
    labels,
    low: () => 0,
    high: () => 1,
    coordinates(value) {
      const [label, number] = arrayOf(value, 2, "a label and a number");
      const group = placeOf(label);
      const [held] = of.coordinates(number);
      const share = (held - of.low(0)) / (of.high(0) - of.low(0));
      const point = new Float64Array(2 * groups);
      point[group] = Math.min(Math.max(share, 0), 1);
      point[group + groups] = 1 - point[group];
      return point;
    },
    rounded(point, unit, most, random) {
      const [chance] = uniforms(random, 1);
      const group = point.findIndex((share) => share > 0) % groups;
      const steps = Math.floor(point[group] / unit + chance);
      const cells = new Float64Array(2 * groups);
      cells[group] = Math.min(Math.max(steps, 0), most[0]);
      cells[group + groups] = most[0] - cells[group]; // both have as many together, whichever way
      return cells;
    },
  };
}
