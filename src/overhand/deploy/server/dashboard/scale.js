// Axes: where the ticks are, what they say, and where a number lies. Shared by both charts.

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
}

// The round numbers from `low` to `high`, at most about `most` of them.
export function ticks(low, high, most, least = 0) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((each) => each * power >= rough * (1 - 1e-9));
  const step = Math.max(least, factor * power);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const values = Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
  return { values, step };
}

export function tickLabels({ values, step }) {
  const decimals = Math.min(12, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  const wide = Math.max(...values.map(Math.abs)) >= 1e9;
  const format = new Intl.NumberFormat("en", {
    signDisplay: "negative",
    ...(wide
      ? { notation: "compact", maximumSignificantDigits: 6 }
      : { minimumFractionDigits: decimals, maximumFractionDigits: decimals }),
  });
  return values.map((value) => format.format(value));
}

// The upright axis with its grid, with room for all `numbers`. Its labels are measured, so that none is
// ever cut off. Returns the left edge of the plot and the map from a number to its height.
export function upright(picture, numbers, { top, bottom, right }) {
  let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (!(high > low)) {
    const around = Math.abs(low) / 10 || 1;
    [low, high] = [low - around, high + around];
  }
  const room = (high - low) / 30;
  if (low !== 0) low -= room;
  if (high !== 0) high += room;
  const axis = ticks(low, high, Math.max(2, (bottom - top) / 40));
  const place = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const labels = tickLabels(axis).map((label, i) =>
    svg("text", { x: 0, y: place(axis.values[i]) + 4, "text-anchor": "end" }, label));
  picture.append(...labels);
  const left = 8 + Math.ceil(Math.max(...labels.map((label) => label.getComputedTextLength())));
  for (const label of labels) label.setAttribute("x", left - 6);
  picture.append(...axis.values.map((value) => svg("line", {
    class: value === 0 ? "axis" : "grid", x1: left, x2: right, y1: place(value), y2: place(value),
  })));
  return { left, place };
}
