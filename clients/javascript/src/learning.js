/** How a recommender learns, as its document says: what features are, and who signs policies. */

import { isName, short, shown, wrong } from "./checks.js";
import { array, contentOf, damaged, digits, object, real, string, whole } from "./fields.js";
import { TOLERANCE, bounded, joined, normOf } from "./values.js";

const ALIKE = 1e-6; // how far a constant feature may be from what it is said to be
const SMALL = 0.5; // what a larger constant is made
const MOST_NAME = 100;
const MOST_ARMS = 1000;
const MOST_SIDE = 2 ** 10;
const KEY_BYTES = 32;
const CONSTANTS = {
  practical: ["dimension", "constant", "exploration"],
  theory: ["dimension", "horizon", "entry_error", "reward_std"],
};

/** @typedef {import("./json.js").Json} Json */

/** What the document of a recommender says of it, besides plan and key. */
export class Learning {
  /**
   * @param {number} dimension how many features an arm has
   * @param {number | null} constant the first feature of all arms, if it is the same for all
   * @param {string} policyKey who signs policies, in hexadecimal digits
   * @param {readonly string[]} features their names, if they have any
   */
  constructor(dimension, constant, policyKey, features) {
    this.dimension = dimension;
    this.constant = constant;
    this.policyKey = policyKey;
    this.features = features;
    /**
     * The features of arms that are the same for everybody, by name.
     *
     * @type {ReadonlyMap<string, Float64Array>}
     */
    this.arms = new Map();
    /** What features are multiplied by before they are reported. */
    this.scales = scalesOf(dimension, constant);
  }

  /**
   * @param {Json} saved
   * @param {import("./plan.js").Plan} plan which must add up what is learnt from
   */
  static of(saved, plan) {
    const policy = string("learning.policy", contentOf(saved, "policy"));
    const constants = new Map(Object.entries(CONSTANTS)).get(policy);
    if (constants === undefined) throw damaged(`policies by ${policy}, which nobody knows`);
    const fields = object("learning", saved, [
      "policy",
      ...constants,
      "features",
      "arms",
      "policy_key",
    ]);
    const dimension = whole("learning.dimension", fields.dimension, 1, MOST_SIDE);
    const constant = policy === "practical" ? constantOf(fields) : checkTheory(fields);
    if (plan.kind.spec !== `regression:${dimension}` || plan.clip) {
      throw damaged(`a plan for ${plan.kind.spec} cannot serve regression:${dimension}`);
    }
    const learning = new Learning(
      dimension,
      constant,
      digits("learning.policy_key", fields.policy_key, KEY_BYTES),
      namesOf(fields.features, dimension),
    );
    learning.arms = armsOf(fields.arms, learning);
    return learning;
  }

  /**
   * The features of one arm, if they are what they should be.
   *
   * @param {unknown} value
   * @param {string} name of the arm
   */
  checked(value, name) {
    const isList = Array.isArray(value) || ArrayBuffer.isView(value);
    const x = Float64Array.from(isList ? /** @type {number[]} */ (value) : [], (one) =>
      typeof one === "number" ? one : NaN,
    );
    if (x.length !== this.dimension) {
      throw wrong(`${name} of ${x.length} features must have ${this.dimension}`);
    }
    if (!(x.reduce((sum, one) => sum + one * one, 0) <= 1 + TOLERANCE)) {
      throw wrong(`${name} of norm ${short(normOf(x))} must be finite and of norm at most 1`);
    }
    if (this.constant !== null && Math.abs(x[0] - this.constant) > ALIKE) {
      const constant = short(this.constant);
      throw wrong(`the first feature of ${name} is ${short(x[0])}, not the constant ${constant}`);
    }
    this.#scaled(x);
    return x;
  }

  /**
   * What a person reports, as coordinates of the plan's moments.
   *
   * @param {Float64Array} features of the arm that was chosen, checked
   * @param {unknown} reward
   */
  coordinates(features, reward) {
    if (typeof reward !== "number" || !(reward >= 0 && reward <= 1)) {
      throw wrong(`reward ${shown(reward)} must be between 0 and 1`);
    }
    const response = this.constant === null ? reward : 2 * reward - 1;
    return joined(this.#scaled(features), response);
  }

  /** @param {Float64Array} features */
  #scaled(features) {
    const largest = this.scales.reduce((most, one) => Math.max(most, one * one), 0);
    const x = bounded(features, 1, false).map((one, i) => one * this.scales[i]);
    return bounded(x, 1, false, { tolerance: 4 * TOLERANCE * largest });
  }
}

/**
 * A constant is made small, so that the other features may be larger within norm 1.
 *
 * @param {number} dimension
 * @param {number | null} constant
 */
function scalesOf(dimension, constant) {
  const scales = new Float64Array(dimension).fill(1);
  if (constant === null) return scales;
  const small = Math.min(constant, SMALL);
  scales.fill(Math.sqrt((1 - small * small) / (1 - constant * constant)));
  scales[0] = small / constant;
  return scales;
}

/** @param {{ [name: string]: Json }} fields */
function constantOf({ constant, exploration }) {
  positive("learning.exploration", exploration);
  if (constant === null) return null;
  return real("learning.constant", constant, 0, 1);
}

/** @param {{ [name: string]: Json }} fields */
function checkTheory({ horizon, entry_error, reward_std }) {
  whole("learning.horizon", horizon, 1);
  positive("learning.entry_error", entry_error);
  positive("learning.reward_std", reward_std);
  return null;
}

/**
 * @param {string} name
 * @param {Json} value
 */
function positive(name, value) {
  real(name, floatOf(value), 0);
}

/**
 * Whole numbers may stand for real ones.
 *
 * @param {Json} value
 */
const floatOf = (value) => (typeof value === "bigint" ? Number(value) : value);

/**
 * @param {Json} saved
 * @param {number} dimension
 */
function namesOf(saved, dimension) {
  const names = array("learning.features", saved).map(checkedName);
  const isRight = names.length === dimension || names.length === 0;
  if (!isRight || new Set(names).size !== names.length) {
    throw damaged(`${names.length} names for ${dimension} features, or one of them twice`);
  }
  return names;
}

/** @param {Json} saved */
function checkedName(saved) {
  const name = string("a name", saved);
  if (!isName(name, MOST_NAME)) {
    throw damaged(
      `${JSON.stringify(name).slice(0, 2 * MOST_NAME)} is not a name of 1 to ${MOST_NAME} printable characters`,
    );
  }
  return name;
}

/**
 * @param {Json} saved
 * @param {Learning} learning
 */
function armsOf(saved, learning) {
  if (!(saved instanceof Map)) throw damaged("learning.arms is not an object");
  if (saved.size > MOST_ARMS) throw damaged(`${saved.size} arms are more than ${MOST_ARMS}`);
  const arms = [...saved].map(([name, features]) => {
    const numbers = array(`the arm ${name}`, features).map(floatOf);
    try {
      return /** @type {const} */ ([checkedName(name), learning.checked(numbers, name)]);
    } catch (error) {
      throw damaged(/** @type {Error} */ (error).message);
    }
  });
  return new Map(arms);
}
