/** Kinds of values that are in one of many buckets: a number, a label, or a real between edges. */

import { isCount, isInterval, isName, numberOf, shown, within, wrong } from "./checks.js";
import { pythonFloat } from "./json.js";

const MOST_BUCKETS = 2 ** 20;
const MOST_LABELS = 2 ** 14;
const LONGEST_LABEL = 100;
const LISTED = 5; // labels that an error lists
const DIGITS = "\\p{Nd}+(?:_\\p{Nd}+)*";
/** What reads as a number, and so as a number of buckets. */
const NUMBER = new RegExp(
  `^[+-]?(?:(?:${DIGITS}\\.?(?:${DIGITS})?|\\.${DIGITS})(?:e[+-]?${DIGITS})?|inf(?:inity)?|nan)$`,
  "iu",
);

/** @typedef {import("./values.js").Kind} Kind */

/**
 * @param {string} spec
 * @param {number} dimension
 * @param {boolean} canClip
 * @param {(value: unknown) => number} bucketOf
 * @param {readonly string[]} [labels]
 * @returns {Kind}
 */
function buckets(spec, dimension, canClip, bucketOf, labels) {
  return {
    spec,
    dimension,
    canClip,
    isWhole: true,
    labels,
    low: () => 0,
    high: () => 1,
    coordinates(value) {
      const point = new Float64Array(dimension);
      point[bucketOf(value)] = 1;
      return point;
    },
  };
}

/**
 * `histogram:B`, `histogram:LABEL,LABEL,...` or the same and `:LABEL` for all others.
 *
 * @param {string[]} words
 * @returns {Kind | undefined}
 */
export function histogram(words) {
  const [first, other] = words;
  if (first === undefined || words.length > 2) return undefined;
  if (/^\d+$/.test(first)) {
    return isCount(first, 2, MOST_BUCKETS) && other === undefined ? numbered(+first) : undefined;
  }
  const labels = other === undefined ? first.split(",") : [...first.split(","), other];
  return areLabels(labels, other) ? labelled(labels, other) : undefined;
}

/** @param {number} count */
function numbered(count) {
  return buckets(`histogram:${count}`, count, false, (value) => {
    const isBucket = typeof value === "number" && Number.isInteger(value);
    if (!isBucket || value < 0 || value >= count) {
      throw wrong(`value ${shown(value)} is not a bucket from 0 to ${count - 1}`);
    }
    return value;
  });
}

/**
 * @param {string[]} labels
 * @param {string | undefined} other the last of them, for all that have no label
 */
function labelled(labels, other) {
  const spec = `histogram:${spelled(labels, other)}`;
  return buckets(spec, labels.length, false, placesOf(labels, other), labels);
}

/**
 * Finds the place of a label.
 *
 * @param {string[]} labels
 * @param {string | undefined} other
 * @returns {(value: unknown) => number}
 */
export function placesOf(labels, other) {
  const places = new Map(labels.map((label, place) => [label, place]));
  return (value) => {
    const place = typeof value === "string" ? places.get(value) : undefined;
    if (place !== undefined) return place;
    if (typeof value === "string" && other !== undefined) return labels.length - 1;
    const more = labels.length > LISTED ? ", ..." : "";
    const listed = labels.slice(0, LISTED).join(", ") + more;
    throw typeof value === "string"
      ? wrong(`${shown(value)} is not one of the ${labels.length} labels: ${listed}`)
      : wrong(`value ${shown(value)} is not a label: ${listed}`);
  };
}

/**
 * Labels with commas between them, and after a colon the one for all others.
 *
 * @param {string[]} labels
 * @param {string | undefined} other
 */
export function spelled(labels, other) {
  return other === undefined ? labels.join(",") : `${labels.slice(0, -1).join(",")}:${other}`;
}

/**
 * @param {string[]} labels
 * @param {string | undefined} other the last of them, for all that have no label
 */
export function areLabels(labels, other) {
  const areMany = labels.length >= 2 && labels.length <= MOST_LABELS;
  const areNames = labels.every((label) => label === label.trim() && isName(label, LONGEST_LABEL));
  const isAlone = other !== undefined && labels.length === 2;
  const isNumber = isAlone && NUMBER.test(labels[0]);
  return areMany && areNames && !isNumber && new Set(labels).size === labels.length;
}

/**
 * `binned:LOW:HIGH:BINS` or `binned:EDGE,EDGE,...`: a number counts in the bin that it is in.
 *
 * An edge belongs to the bin above it, the last one to the bin below.
 *
 * @param {string[]} words
 * @param {boolean} clip
 * @returns {Kind | undefined}
 */
export function binned(words, clip) {
  const edges = edgesOf(words);
  if (edges === undefined) return undefined;
  const low = edges[0];
  const high = edges[edges.length - 1];
  const bins = edges.length - 1;
  const areEven = evenly(low, high, bins).every((edge, i) => edge === edges[i]);
  const ends = `${pythonFloat(low)}:${pythonFloat(high)}`;
  const spec = areEven ? `${ends}:${bins}` : edges.map(pythonFloat).join(",");
  return buckets(`binned:${spec}`, bins, true, (value) => {
    return placeAmong(edges.slice(1, -1), within(value, low, high, clip));
  });
}

/**
 * @param {string[]} words
 * @returns {number[] | undefined}
 */
function edgesOf(words) {
  const [first = "", high = "", bins] = words;
  if (words.length === 3) {
    const isEven = isInterval(first, high) && isCount(bins, 2, MOST_BUCKETS);
    const even = isEven ? evenly(+first, +high, +bins) : [];
    return isEven && doRise(even) ? even : undefined;
  }
  const listed = first.split(",");
  const isList = words.length === 1 && listed.length >= 3 && listed.length <= MOST_LABELS + 1;
  const edges =
    isList && isInterval(listed[0], listed[listed.length - 1]) ? listed.map(numberOf) : [];
  return edges.length > 0 && doRise(edges) ? edges : undefined;
}

/**
 * The edges of bins of one width, by the same operations in the same order as NumPy's `linspace`.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} bins
 */
function evenly(low, high, bins) {
  const step = (high - low) / bins;
  return Array.from({ length: bins + 1 }, (_, i) => (i === bins ? high : i * step + low));
}

/** @param {number[]} edges */
function doRise(edges) {
  return edges.every((edge, i) => i === 0 || edge > edges[i - 1]); // false for a NaN, too
}

/**
 * How many of these edges are not above the value.
 *
 * @param {number[]} edges
 * @param {number} value
 */
function placeAmong(edges, value) {
  let [low, high] = [0, edges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
