// Something that follows from published sums, and is asked for anew when there are others.

const EVERY = 1_000;

export class Asked {
  #ask;
  #take;
  #askedAt = -Infinity;
  #timer = null;

  // `ask()` fetches it, and `take` is given what it answers.
  constructor(ask, take) {
    this.#ask = ask;
    this.#take = take;
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
    this.#take(await this.#ask());
  }
}
