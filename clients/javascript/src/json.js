/**
 * JSON as Python writes it: a document's digest is of its bytes, and there is one way to write it.
 *
 * Whole numbers are read as `bigint`, since they may have 64 bits, and all others as `number`: so a
 * text that was read can be written again, digit by digit. Objects are read as maps: JavaScript's
 * own put a name like "1984" before all others.
 *
 * @typedef {null | boolean | bigint | number | string | Json[] | Map<string, Json>} Json
 */

const TOKEN =
  /[ \t\n\r]*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\.)*")|(-?(?:0|[1-9]\d*))(\.\d+)?([eE][+-]?\d+)?|(true|false|null))/y;
const MOST_DEPTH = 32;
const CONSTANTS = { true: true, false: false, null: null };

/**
 * The value of a text, or a SyntaxError.
 *
 * @param {string} text
 * @returns {Json}
 */
export function parse(text) {
  const reader = new Reader(text);
  const value = reader.value(reader.next(), 0);
  reader.end();
  return value;
}

class Reader {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.place = 0;
  }

  /** @returns {RegExpExecArray} */
  next() {
    TOKEN.lastIndex = this.place;
    const token = TOKEN.exec(this.text);
    if (token === null) throw new SyntaxError(`no JSON at character ${this.place}`);
    this.place = TOKEN.lastIndex;
    return token;
  }

  end() {
    if (this.text.slice(this.place).trim() !== "") {
      throw new SyntaxError(`more than one value at character ${this.place}`);
    }
  }

  /**
   * @param {RegExpExecArray} token
   * @param {number} depth
   * @returns {Json}
   */
  value(token, depth) {
    const [, mark, string, whole, fraction, exponent, constant] = token;
    if (depth > MOST_DEPTH) throw new SyntaxError("it is nested too deeply");
    if (mark === "{") return this.object(depth);
    if (mark === "[") return this.array(depth);
    if (string !== undefined) return JSON.parse(string);
    if (constant !== undefined) return CONSTANTS[/** @type {"true"} */ (constant)];
    if (whole === undefined) throw new SyntaxError(`unexpected ${mark} before ${this.place}`);
    if (fraction === undefined && exponent === undefined) return BigInt(whole);
    return Number(whole + (fraction ?? "") + (exponent ?? ""));
  }

  /** @param {number} depth */
  array(depth) {
    /** @type {Json[]} */
    const items = [];
    for (let token = this.next(); token[1] !== "]"; token = this.next()) {
      if (items.length > 0) token = this.after(",", token);
      items.push(this.value(token, depth + 1));
    }
    return items;
  }

  /** @param {number} depth */
  object(depth) {
    /** @type {Map<string, Json>} */
    const items = new Map();
    for (let token = this.next(); token[1] !== "}"; token = this.next()) {
      if (items.size > 0) token = this.after(",", token);
      if (token[2] === undefined) throw new SyntaxError(`no name before ${this.place}`);
      const name = JSON.parse(token[2]);
      if (items.has(name)) throw new SyntaxError(`${token[2]} stands twice`);
      items.set(name, this.value(this.after(":", this.next()), depth + 1));
    }
    return items;
  }

  /**
   * The token that follows a mark.
   *
   * @param {string} mark
   * @param {RegExpExecArray} token
   */
  after(mark, token) {
    if (token[1] !== mark) throw new SyntaxError(`no ${mark} before character ${this.place}`);
    return this.next();
  }
}

/**
 * What Python's `json.dumps(value, indent=2)` writes.
 *
 * @param {Json} value
 * @param {string} [margin]
 * @returns {string}
 */
export function indented(value, margin = "") {
  if (typeof value !== "object" || value === null) return scalar(value);
  const inner = `${margin}  `;
  const lines = Array.isArray(value)
    ? value.map((item) => inner + indented(item, inner))
    : Array.from(value, ([name, item]) => `${inner}${quoted(name)}: ${indented(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return lines.length === 0 ? open + close : `${open}\n${lines.join(",\n")}\n${margin}${close}`;
}

/**
 * What Python's `json.dumps(value, sort_keys=True, separators=(",", ":"))` writes.
 *
 * @param {Json} value
 * @returns {string}
 */
export function compact(value) {
  if (typeof value !== "object" || value === null) return scalar(value);
  if (Array.isArray(value)) return `[${value.map(compact).join(",")}]`;
  const items = [...value].sort(([one], [other]) => (one < other ? -1 : 1));
  return `{${items.map(([name, item]) => `${quoted(name)}:${compact(item)}`).join(",")}}`;
}

/** @param {null | boolean | bigint | number | string} value */
function scalar(value) {
  if (typeof value === "string") return quoted(value);
  return typeof value === "number" ? pythonFloat(value) : String(value);
}

/**
 * A string in ASCII, as Python escapes it.
 *
 * @param {string} text
 */
function quoted(text) {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (unit) =>
    unit === "\u007f" ? unit : `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/**
 * A floating-point number as Python's `repr` spells it: the same shortest digits as JavaScript's,
 * but with an exponent below 1e-4 and from 1e16 on, and ".0" where a whole number would stand.
 *
 * @param {number} value
 */
export function pythonFloat(value) {
  const [digits, exponent] = value.toExponential().split("e");
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const plain = digits.replace(/[-.]/g, "");
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${plain}`;
  const whole = plain.slice(0, power + 1).padEnd(power + 1, "0");
  return `${sign}${whole}.${plain.slice(power + 1) || "0"}`;
}
