// Something that follows from published sums, and is asked for anew when there are others.

const EVERY = 1_000;

export class Asked {
  #ask;
  #nothing;
  #newness;
  #changed;
  #askedAt = -Infinity;
  #timer = null;

  // `ask()` fetches it, and `nothing` is what there is before; `newness` of an answer grows with the
  // sums that it is made of. `changed()` is told when there is something else to show.
  constructor(ask, nothing, newness, changed) {
    this.#ask = ask;
    this.#nothing = nothing;
    this.#newness = newness;
    this.#changed = changed;
    this.found = nothing;
  }

  // Another plan's: what was found before is not of it.
  forget() {
    this.found = this.#nothing;
  }

  // There are other sums: ask, but not more often than anybody could read.
  follow() {
    const wait = Math.max(0, this.#askedAt + EVERY - performance.now());
    // A failure is the connection's to notice; it asks again when it is back.
    this.#timer ??= setTimeout(() => this.load().catch(() => {}), wait);
  }

  async load() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#askedAt = performance.now();
    const answer = await this.#ask();
    if (this.#newness(answer) < this.#newness(this.found)) return;
    this.found = answer;
    this.#changed();
  }
}
