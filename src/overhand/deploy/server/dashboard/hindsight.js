// The history in hindsight, from all batches so far: a second line next to what was published, which
// stays as it was. It is asked for only while it is switched on.

import * as words from "./words.js";

const EVERY = 5_000;

export class Hindsight {
  #box;
  #ask;
  #changed;
  #series = null;
  #coordinate = 0;
  #timer = null;

  // `ask(coordinate)` answers the series; `changed()` is told when there is another to show.
  constructor(box, ask, changed) {
    this.#box = box;
    this.#ask = ask;
    this.#changed = changed;
    box.addEventListener("change", () => this.#load());
  }

  follow(coordinate) {
    if (coordinate !== this.#coordinate) {
      this.#coordinate = coordinate;
      this.#series = null;
      this.#load();
    } else {
      this.#timer ??= setTimeout(() => this.#load(), EVERY);
    }
  }

  // The second line as the charts show it, or null. `viewed(point, users)`: the sum, or per user.
  line(viewed) {
    if (!this.#box.checked || !this.#series) return null;
    const { t, value } = this.#series;
    return { t, value: t.map((users, i) => viewed({ value: value[i] }, users).value) };
  }

  // What to say of the last point by t.
  reading(t, viewed) {
    const i = this.#box.checked ? (this.#series?.t.findLastIndex((one) => one <= t) ?? -1) : -1;
    if (i < 0) return "";
    const { value, low, high } = this.#series;
    const point = viewed({ value: value[i], low: low[i], high: high[i] }, this.#series.t[i]);
    const decimals = words.decimalsFor(point);
    return `; in hindsight ${words.number(point.value, decimals)} (${words.between(point, decimals)})`;
  }

  // How its error, over all points, compares with that of what was published.
  gain() {
    if (!this.#box.checked || !this.#series?.t.length) return "";
    return `: ${Math.round(100 * this.#series.ratio)}\u00a0% of the published error`;
  }

  async #load() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#box.checked) {
      const wanted = this.#coordinate;
      try {
        const answer = await this.#ask(wanted);
        if (wanted === this.#coordinate) this.#series = answer;
      } catch {
        // A failure is the connection's to notice; the next news asks again.
      }
    }
    this.#changed();
  }
}
