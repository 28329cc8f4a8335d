// The running estimate with its band, as SVG: crisp at any density, coloured by the style sheet.

import { svg, tickLabels, ticks, upright } from "./scale.js";

const BELOW = 24;
const ABOVE = 10;
const RIGHT = 12;

const drawn = Number.isFinite;

// The stretches of a series between its gaps, as lists of places.
function stretches(length, whole) {
  const found = [];
  for (let i = 0; i < length; i++) {
    if (!whole(i)) continue;
    if (i > 0 && whole(i - 1)) found.at(-1).push(i);
    else found.push([i]);
  }
  return found;
}

function nearest(sorted, wanted) {
  let best = 0;
  for (let i = 1; i < sorted.length; i++) {
    if (Math.abs(sorted[i] - wanted) <= Math.abs(sorted[best] - wanted)) best = i;
  }
  return best;
}

// Drop the point that is missed least: the one whose neighbours are closest together.
export function dropOne(series) {
  const { t } = series;
  let least = 1;
  for (let i = 2; i < t.length - 1; i++) {
    if (t[i + 1] - t[i - 1] < t[least + 1] - t[least - 1]) least = i;
  }
  for (const column of Object.values(series)) column.splice(least, 1);
}

export class Chart {
  #box;
  #picture = svg("svg", { "aria-hidden": "true" });
  #pointer = svg("g");
  #series = { t: [], value: [], low: [], high: [] };
  #told = null;
  #start = 0;
  #from = 0;
  #zero = false;
  #empty = "";
  #readAt = null;
  #scale = null;
  #read;

  // `read(i)` is told which point is pointed at, or null, and answers what to say of it.
  constructor(box, read) {
    this.#box = box;
    this.#read = read;
    box.append(this.#picture);
    // A slider is what a screen reader knows that has arrow keys and says where it stands.
    box.setAttribute("role", "slider");
    box.tabIndex = 0;
    box.setAttribute("aria-label", "The running estimate, read at a number of users");
    new ResizeObserver(() => this.#draw()).observe(box);
    const point = (event) => this.#point(event.clientX);
    box.addEventListener("pointermove", point);
    box.addEventListener("pointerdown", point);
    box.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.#moveTo(null);
    });
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  // `start`: the t at the left edge. `from`: the t from which everything has to fit; earlier points
  // may run out of the picture. `zero`: whether 0 has to be in it. `empty`: what to say
  // without a point. `told`: a second line, if there is one.
  show(series, { start, from, zero, empty, told = null }) {
    this.#series = series;
    this.#told = told;
    this.#start = start;
    this.#from = from;
    this.#zero = zero;
    this.#empty = empty;
    this.#draw();
  }

  #draw() {
    const { width, height } = this.#box.getBoundingClientRect();
    const { t, value, low, high } = this.#series;
    this.#picture.replaceChildren();
    this.#box.dataset.points = t.length;
    this.#scale = null;
    if (!width || !height) return;
    if (!t.length) {
      this.#picture.append(svg("text", {
        class: "empty", x: width / 2, y: height / 2, "text-anchor": "middle",
      }, this.#empty));
      this.#tell();
      return;
    }
    const bottom = height - BELOW;
    const right = width - RIGHT;
    const fitted = t
      .flatMap((at, i) => (at < this.#from ? [] : [value[i], low[i], high[i]]))
      .filter(drawn);
    if (this.#zero || !fitted.length) fitted.push(0);
    const y = upright(this.#picture, fitted, { top: ABOVE, bottom, right });
    const start = this.#start;
    const last = Math.max(start + 1, t.at(-1));
    const x = (at) => y.left + ((at - start) / (last - start)) * (right - y.left);
    this.#scale = { x, y: y.place, left: y.left, right, last, top: ABOVE, bottom };
    this.#users(start, last, x, bottom, right);

    // A picture within the picture cuts off what runs out of it.
    const inside = svg("svg", {
      x: y.left, y: ABOVE, width: Math.max(1, right - y.left + RIGHT), height: bottom - ABOVE,
      viewBox: `${y.left} ${ABOVE} ${Math.max(1, right - y.left + RIGHT)} ${bottom - ABOVE}`,
    });
    const spot = (i, of) => `${x(t[i]).toFixed(1)} ${y.place(of[i]).toFixed(1)}`;
    for (const run of stretches(t.length, (i) => drawn(low[i]) && drawn(high[i]))) {
      if (run.length === 1) {
        const [i] = run;
        inside.append(svg("line", {
          class: "alone", x1: x(t[i]), x2: x(t[i]), y1: y.place(low[i]), y2: y.place(high[i]),
        }));
        continue;
      }
      const there = run.map((i) => spot(i, high));
      const back = run.map((i) => spot(i, low)).reverse();
      inside.append(svg("path", { class: "area", d: `M${there.join("L")}L${back.join("L")}Z` }));
    }
    for (const run of stretches(t.length, (i) => drawn(value[i]))) {
      const [i] = run;
      inside.append(run.length === 1
        ? svg("circle", { class: "point", cx: x(t[i]), cy: y.place(value[i]), r: 4 })
        : svg("path", { class: "curve", d: `M${run.map((j) => spot(j, value)).join("L")}` }));
    }
    if (this.#told?.t.length) {
      const spots = this.#told.t.map((at, i) => (
        `${x(at).toFixed(1)} ${y.place(this.#told.value[i]).toFixed(1)}`
      ));
      inside.append(svg("path", { class: "curve told", d: `M${spots.join("L")}` }));
    }
    const end = t.length - 1;
    this.#picture.append(inside);
    if (drawn(value[end])) {
      this.#picture.append(
        svg("circle", { class: "point", cx: x(t[end]), cy: y.place(value[end]), r: 5 }),
      );
    }
    this.#picture.append(this.#pointer);
    this.#tell();
  }

  #users(start, last, x, bottom, right) {
    const left = x(start);
    this.#picture.append(svg("line", { class: "grid", x1: left, x2: right, y1: bottom, y2: bottom }));
    const axis = ticks(start, last, Math.max(2, (right - left) / 110), 1);
    const labels = tickLabels(axis);
    axis.values.forEach((value, i) => {
      const crowded = right - x(value) < labels[i].length * 4;
      const anchor = i === 0 && !crowded ? "start" : crowded ? "end" : "middle";
      const at = crowded ? right + RIGHT : x(value);
      this.#picture.append(
        svg("line", { class: "axis", x1: x(value), x2: x(value), y1: bottom, y2: bottom + 4 }),
        svg("text", { x: at, y: bottom + 18, "text-anchor": anchor },
          i === 0 ? `${labels[i]} users` : labels[i]),
      );
    });
  }

  #point(clientX) {
    if (!this.#scale) return;
    const { left, right, last } = this.#scale;
    const inBox = clientX - this.#box.getBoundingClientRect().left;
    const across = (inBox - left) / Math.max(1, right - left);
    this.#moveTo(nearest(this.#series.t, this.#start + across * (last - this.#start)));
  }

  #key(event) {
    const end = this.#series.t.length - 1;
    if (end < 0) return;
    const here = this.#readAt === null ? end : nearest(this.#series.t, this.#readAt);
    const page = Math.max(1, Math.round(end / 10));
    const target = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1,
      PageDown: here - page, PageUp: here + page, Home: 0, End: end, Escape: null,
    }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    this.#moveTo(target === null ? null : Math.min(end, Math.max(0, target)));
  }

  #moveTo(i) {
    this.#readAt = i === null ? null : this.#series.t[i];
    this.#tell();
  }

  #tell() {
    const { t, value } = this.#series;
    const i = this.#readAt === null || !t.length ? null : nearest(t, this.#readAt);
    this.#pointer.replaceChildren();
    if (i !== null && this.#scale) {
      const { x, y, top, bottom } = this.#scale;
      const [x1, x2] = [x(t[i]), x(t[i])];
      this.#pointer.append(svg("line", { class: "cursor", x1, x2, y1: top, y2: bottom }));
      if (drawn(value[i])) {
        this.#pointer.append(svg("circle", { class: "point", cx: x(t[i]), cy: y(value[i]), r: 5 }));
      }
    }
    const words = this.#read(i);
    this.#box.setAttribute("aria-valuemin", t[0] ?? 0);
    this.#box.setAttribute("aria-valuemax", t.at(-1) ?? 0);
    this.#box.setAttribute("aria-valuenow", (i === null ? t.at(-1) : t[i]) ?? 0);
    this.#box.setAttribute("aria-valuetext", words);
  }
}
