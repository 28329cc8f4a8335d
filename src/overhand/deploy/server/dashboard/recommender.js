// What a recommender has learnt: its mean reward, theta by feature, and how the arms rank. All of it
// is read off published sums.

import { Asked } from "./asking.js";
import { Bars } from "./bars.js";
import { cell, rowName, showReading } from "./elements.js";
import * as words from "./words.js";

const PLACES = 3;
const NOTHING = { policy: null, reward: { t: [], value: [], low: [], high: [] }, coefficients: [], arms: [] };

const HOW = "How it is read: the first feature is the same for everybody and rewards are reported as "
  + "2 y − 1, so the first coordinate of the private sum of x y counts rewards. It is divided by the "
  + "users and by the feature, and its band with it; nobody’s own reward is ever seen.";
export const UNTOLD = "No feature is the same for everybody, so the private moments do not tell the mean reward.";
export const NOT_PROTECTED = "The arm that somebody visibly takes is not protected: whoever sees it may "
  + "guess at that person’s features, since everybody knows the policy. Features and rewards are protected.";
const HINT = "What one unit of a feature adds to the reward that is expected, with intervals of at "
  + "least 95 %. Point at a bar to read it.";

const part = (id) => document.getElementById(id);

export class Recommender extends Asked {
  #shown = null;
  #theta;

  constructor(ask, changed) {
    super(ask, NOTHING, ({ policy }) => policy?.number ?? 0, changed);
    this.#theta = new Bars(part("theta"), (i) => this.#read(i), () => {});
  }

  // Of mean rewards, and whether there can be any.
  get series() {
    return this.found.reward;
  }

  get isUntold() {
    return this.found.policy !== null && this.found.reward.t.length === 0;
  }

  show(isShown) {
    for (const id of ["learnt-card", "reward-how", "learnt-links"]) part(id).hidden = !isShown;
    part("arms-card").hidden = !isShown || !this.found.arms.length;
    if (!isShown || this.#shown === this.found) return;
    this.#shown = this.found;
    const { policy, coefficients, arms } = this.found;
    part("reward-how").textContent = this.isUntold ? UNTOLD : HOW;
    part("learnt-policy").textContent = policy === null
      ? "No policy yet: devices choose any arm, all alike."
      : `Policy ${words.number(policy.number)}, learnt from ${words.count(policy.users, "user")}.`;
    const columns = ["value", "low", "high"].map((name) => [name, coefficients.map((one) => one[name])]);
    this.#theta.show(Object.fromEntries(columns), {
      chosen: -1,
      names: coefficients.map(({ feature }) => feature),
      summary: `Bar chart of theta. ${coefficients.map((one) => `${one.feature}: ${words.withRange(one)}`).join("; ")}`,
    });
    part("theta").hidden = !coefficients.length;
    part("arm-rows").replaceChildren(...arms.map(armRow));
  }

  #read(i) {
    const one = i === null ? null : this.found.coefficients[i] ?? null;
    showReading(part("theta-reading"), one?.feature, one, HINT);
  }
}

function armRow({ arm, expected, bonus }, place) {
  const numbers = [expected, bonus, expected + bonus].map((one) => cell("td", words.number(one, PLACES)));
  return cell("tr", cell("td", words.number(place + 1)), rowName(arm), ...numbers);
}
