/** Chooses among arms by the newest policy: contexts, choice and reward stay here. */

import { OverhandError } from "./errors.js";
import { below, secureRandom } from "./randomness.js";
import { SignedPolicy, wrong } from "./policies.js";

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

/** The policy that a device goes by, and what it chose last. */
export class Chooser {
  #requests;
  #maxAge;
  /** @type {SignedPolicy | null} */
  #policy = null;
  #digest = "";
  #askedAt = -Infinity;
  /** @type {Float64Array | null} */
  #chosen = null;

  /**
   * @param {import("./requests.js").Requests} requests
   * @param {number} maxAge seconds for which a policy is used before a newer one is asked for
   */
  constructor(requests, maxAge) {
    this.#requests = requests;
    this.#maxAge = maxAge;
  }

  /**
   * The newest policy, asked for if the last is too old; null if there is none yet.
   *
   * @param {Recommending} document
   */
  async policy({ learning, digest }) {
    const now = performance.now() / 1000;
    if (digest === this.#digest && now - this.#askedAt < this.#maxAge) return this.#policy;
    const answer = await this.#requests.request("GET", "/v1/policy", undefined, true);
    const last = digest === this.#digest ? this.#policy : null;
    const policy = answer === null ? last : await SignedPolicy.of(answer, learning, digest);
    if (policy !== null && last !== null && policy.isOlderThan(last)) {
      throw wrong(
        `policy ${policy.number} is older than policy ${last.number}, which this device has seen`,
      );
    }
    [this.#policy, this.#digest, this.#askedAt] = [policy, digest, now];
    return policy;
  }

  /**
   * Which of the contexts to take; before the first policy any of them, all alike.
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
    const policy = await this.policy(document);
    const arm = policy === null ? below(secureRandom, arms.length) : policy.choose(arms);
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
