/** Chooses among arms by the newest rule: contexts, choice and reward stay here. */

import { OverhandError } from "./errors.js";
import { below, secureRandom } from "./randomness.js";
import { Rule, wrong } from "./rules.js";

/** @typedef {import("./document.js").Document} Document */
/** @typedef {Document & { learning: import("./learning.js").Learning }} Recommending */

/**
 * The document, if it is of a recommender.
 *
 * @param {Document} document
 * @returns {Recommending}
 */
export function recommenderOf(document) {
  if (document.learning === null) {
    throw new OverhandError(
      "argument",
      `the document is of no recommender: it adds up ${document.plan.kind.spec}`,
    );
  }
  return /** @type {Recommending} */ (document);
}

/** The rule that a device goes by, and what it chose last. */
export class Chooser {
  #requests;
  #maxAge;
  /** @type {Rule | null} */
  #rule = null;
  #digest = "";
  #askedAt = -Infinity;
  /** @type {Float64Array | null} */
  #chosen = null;

  /**
   * @param {import("./requests.js").Requests} requests
   * @param {number} maxAge seconds for which a rule is used before a newer one is asked for
   */
  constructor(requests, maxAge) {
    this.#requests = requests;
    this.#maxAge = maxAge;
  }

  /**
   * The newest rule, asked for if the last is too old; null if there is none yet.
   *
   * @param {Recommending} document
   */
  async rule({ learning, digest }) {
    const now = performance.now() / 1000;
    if (digest === this.#digest && now - this.#askedAt < this.#maxAge) return this.#rule;
    const answer = await this.#requests.request("GET", "/v1/policy", undefined, true);
    const last = digest === this.#digest ? this.#rule : null;
    const rule = answer === null ? last : await Rule.of(answer, learning, digest);
    if (rule !== null && last !== null && rule.isOlderThan(last)) {
      throw wrong(
        `rule ${rule.number} is older than rule ${last.number}, which this device has seen`,
      );
    }
    [this.#rule, this.#digest, this.#askedAt] = [rule, digest, now];
    return rule;
  }

  /**
   * Which of the contexts to take; before the first rule any of them, all alike.
   *
   * @param {Recommending} document
   * @param {unknown} contexts a row of features for every arm
   */
  async choose(document, contexts) {
    const rows = Array.isArray(contexts) ? contexts : [];
    if (rows.length === 0) {
      throw new OverhandError("value", "contexts must be a list with a row for every arm");
    }
    const arms = rows.map((row, place) => document.learning.checked(row, `row ${place}`));
    const rule = await this.rule(document);
    const arm = rule === null ? below(secureRandom, arms.length) : rule.choose(arms);
    this.#chosen = arms[arm];
    return arm;
  }

  /**
   * What is reported of the last choice, which is forgotten.
   *
   * @param {Recommending} document
   * @param {unknown} reward
   */
  taken({ learning }, reward) {
    if (this.#chosen === null) {
      throw new OverhandError(
        "not-chosen",
        "nothing was chosen that is not reported: choose first",
      );
    }
    const coordinates = learning.coordinates(this.#chosen, reward);
    this.#chosen = null; // from here on it counts, or NotCounted has its bytes
    return coordinates;
  }
}
