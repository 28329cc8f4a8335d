// All coordinates at once: a bar for each with its error bar. A click chooses one.

import { svg, upright } from "./scale.js";

const BELOW = 22;
const ABOVE = 10;
const LETTER = 7;
const MOST_LETTERS = 12;

const short = (name) => (name.length > MOST_LETTERS ? `${name.slice(0, MOST_LETTERS - 1)}…` : name);

export class Bars {
  #box;
  #picture = svg("svg", { "aria-hidden": "true" });
  #bars = { value: [], low: [], high: [] };
  #chosen = 0;
  #names = null;
  #pointed = null;
  #edges = null;
  #read;

  // `read(i)` is told which bar is pointed at, or null; `choose(i)` which was clicked.
  constructor(box, read, choose) {
    this.#box = box;
    this.#read = read;
    box.setAttribute("role", "img");
    box.append(this.#picture);
    new ResizeObserver(() => this.#draw()).observe(box);
    box.addEventListener("pointermove", (event) => this.#point(this.#under(event)));
    box.addEventListener("pointerleave", () => this.#point(null));
    box.addEventListener("click", (event) => {
      const i = this.#under(event);
      if (i !== null) choose(i);
    });
  }

  // `names` are those of the bars, which else have numbers.
  show(bars, { chosen, summary, names = null }) {
    this.#bars = bars;
    this.#names = names;
    this.#chosen = chosen;
    this.#box.setAttribute("aria-label", summary);
    this.#draw();
  }

  #draw() {
    const { width, height } = this.#box.getBoundingClientRect();
    const { value, low, high } = this.#bars;
    this.#picture.replaceChildren();
    this.#box.dataset.bars = value.length;
    this.#edges = null;
    if (!width || !height || !value.length) return;
    const bottom = height - BELOW;
    const right = width - 4;
    const shown = [0, ...value, ...low, ...high].filter(Number.isFinite);
    const y = upright(this.#picture, shown, { top: ABOVE, bottom, right });
    const each = (right - y.left) / value.length;
    const thick = Math.min(56, each * 0.72);
    this.#edges = { left: y.left, each };
    const labels = value.map((_, i) => short(this.#names?.[i] ?? String(i)));
    const widest = LETTER * Math.max(4, ...labels.map((label) => label.length + 1));
    const labelEvery = Math.ceil(widest / each);
    value.forEach((size, i) => {
      const middle = y.left + (i + 0.5) * each;
      if (i % labelEvery === 0) {
        this.#picture.append(svg("text", { x: middle, y: height - 6, "text-anchor": "middle" }, labels[i]));
      }
      if (!Number.isFinite(size)) return;
      const [from, to] = [y.place(Math.max(0, size)), y.place(Math.min(0, size))];
      const look = `bar${i === this.#chosen ? " chosen" : ""}${i === this.#pointed ? " pointed" : ""}`;
      this.#picture.append(svg("rect", {
        class: look,
        x: middle - thick / 2,
        y: from,
        width: thick,
        height: Math.max(1, to - from),
        rx: Math.min(3, thick / 4),
      }));
      if (!Number.isFinite(low[i]) || !Number.isFinite(high[i])) return;
      const cap = Math.min(6, thick / 3);
      const [above, below] = [y.place(high[i]), y.place(low[i])];
      this.#picture.append(svg("path", {
        class: "whisker",
        d: `M${middle - cap} ${above}h${2 * cap}M${middle} ${above}V${below}M${middle - cap} ${below}h${2 * cap}`,
      }));
    });
    this.#read(this.#pointed);
  }

  #under(event) {
    if (!this.#edges) return null;
    const { left, each } = this.#edges;
    const i = Math.floor((event.clientX - this.#box.getBoundingClientRect().left - left) / each);
    return i >= 0 && i < this.#bars.value.length ? i : null;
  }

  #point(i) {
    if (i === this.#pointed) return;
    this.#pointed = i;
    this.#draw();
  }
}
