/** Kinds of values: what is taken, what is refused, and the coordinates. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { compact, indented, parse, pythonFloat } from "../src/json.js";
import { kindOf } from "../src/values.js";

const TAKEN = [
  ["bit", true, [1]],
  ["real", 0.3, [0.3]],
  ["real:-2.0:5.0", -2, [-2]],
  ["histogram:3", 2, [0, 0, 1]],
  ["histogram:like,love,wow", "love", [0, 1, 0]],
  ["histogram:like,love:any other", "hate", [0, 0, 1]],
  ["histogram:👍,❤️,😮", "❤️", [0, 1, 0]],
  ["binned:0.0:10.0:5", 2, [0, 1, 0, 0, 0]],
  ["binned:0.0:10.0:5", 1.99, [1, 0, 0, 0, 0]],
  ["binned:0.0:10.0:5", 10, [0, 0, 0, 0, 1]],
  ["binned:0.0,1.0,10.0,100.0", 30, [0, 0, 1]],
  ["vector:2", Float32Array.of(0.5, 0.25), [0.5, 0.25]],
  ["vector:1:2.5", [-2.5], [-2.5]],
  [
    "matrix:2",
    [
      [0.5, 0.25],
      [0.25, 0.5],
    ],
    [0.5, 0.25 * Math.SQRT2, 0.5],
  ],
  ["grouped:DE,FR:real:0.0:10.0", ["DE", 2.5], [0.25, 0, 0.75, 0]],
  ["grouped:DE,FR:others:bit", ["IT", 1], [0, 0, 1, 0, 0, 0]],
  ["grouped:DE,FR:bit", ["FR", 0], [0, 0, 0, 1]],
  ["regression:1", [0.5, -1], [-0.5, 0.25]],
];

for (const [spec, value, due] of TAKEN) {
  test(`${spec} takes ${JSON.stringify(value)}`, () => {
    const kind = kindOf(spec, false);
    assert.equal(kind.dimension, due.length);
    assert.deepEqual([...kind.coordinates(value)], due);
  });
}

const WRONG = {
  bit: [2, 0.5, "1", null, [0]],
  real: [-0.1, 1.1, NaN, Infinity, "0.3", null, [0.3], 1n],
  "histogram:3": [3, -1, 0.5, "0", true, null],
  "histogram:like,love": ["Like", "", 0, null, "__proto__"],
  "histogram:like:other": [0, null, ["like"]],
  "binned:0.0:10.0:5": [-1, 10.1, NaN, "1"],
  "vector:2": [
    [1],
    [1, 1],
    [0, NaN],
    [0, "0"],
    "ab",
    { length: 2 },
    1,
    null,
    new DataView(new ArrayBuffer(2)),
  ],
  "matrix:2": [
    [0.5, 0.5],
    [
      [0.5, 0.2],
      [0.3, 0.5],
    ],
    [
      [1, 1],
      [1, 1],
    ],
    [[0.1], [0.2]],
  ],
  "grouped:DE,FR:real:0.0:10.0": [["IT", 1], ["DE", 11], ["DE"], "DE", ["DE", "1"], [1, "DE"]],
  "regression:2": [
    [1, 1, 0],
    [0, 0, 1.1],
    [0, 0],
    [0, 0, null],
  ],
};

for (const [spec, values] of Object.entries(WRONG)) {
  test(`${spec} refuses what it is not`, () => {
    const kind = kindOf(spec, false);
    for (const value of values)
      assert.throws(() => kind.coordinates(value), { code: "value" }, String(value));
  });
}

test("what is out of range is moved to its edge, if the plan says so", () => {
  assert.deepEqual([...kindOf("real", true).coordinates(7)], [1]);
  assert.deepEqual([...kindOf("binned:0.0:10.0:5", true).coordinates(-7)], [1, 0, 0, 0, 0]);
  const [x, y] = kindOf("vector:2", true).coordinates([3e200, 4e200]);
  assert.ok(Math.abs(x - 0.6) < 1e-15 && Math.abs(y - 0.8) < 1e-15);
  assert.throws(() => kindOf("real", true).coordinates(NaN), { code: "value" });
});

test("a norm that is too large by a rounding error is scaled back", () => {
  const [x] = kindOf("vector:1", false).coordinates([1 + 1e-7]);
  assert.equal(x, 1);
  assert.throws(() => kindOf("vector:1", false).coordinates([1 + 1e-5]), { code: "value" });
});

test("kinds that are none, or spelled otherwise", () => {
  const specs = [
    "",
    "colour:3",
    "bit:1",
    "real:0.0:1.0",
    "real:0:50",
    "real:1.0:0.0",
    "real:0.0:1e200",
    "real:0.0",
    "real:0x0:0x1",
    "histogram",
    "histogram:1",
    "histogram:03",
    "histogram:2097152",
    "histogram:a",
    "histogram:a,a",
    "histogram:a,",
    "histogram:a, b",
    "histogram:a,b:c:d",
    "histogram:3:any other",
    "vector:0",
    "vector:2:1.0",
    "vector:2.0",
    "vector:2:-1.0",
    "matrix:2000",
    "regression:0",
    "regression:2:2",
    "__proto__",
    "toString",
    "binned:0.0:1.0:1",
    "binned:0.0,1.0",
    "binned:0.0,1.0,1.0",
    "binned:0.0,1.0,2.0",
    "binned:1.0:0.0:5",
    "binned:0.0:1e-300:5",
    "grouped",
    "grouped:DE,FR",
    "grouped:DE,FR:vector:2",
    "grouped:DE:bit",
    "grouped:DE,FR:real:0.0:1.0",
    "grouped:DE,FR:a:b:bit",
  ];
  for (const spec of specs) assert.throws(() => kindOf(spec, false), { code: "document" }, spec);
  for (const spec of ["bit", "histogram:3"])
    assert.throws(() => kindOf(spec, true), { code: "document" });
});

test("numbers as Python spells them", () => {
  const spelled = {
    "1.0": 1,
    0.1: 0.1,
    "1e-06": 1e-6,
    0.0001: 1e-4,
    "1e-05": 1e-5,
    "1e+16": 1e16,
    "1000000000000000.0": 1e15,
    123456789012345.67: 123456789012345.67,
    "-0.0": -0,
    "-2.5": -2.5,
    "1.5e-07": 1.5e-7,
    "5e-324": 5e-324,
    "1.7976931348623157e+308": Number.MAX_VALUE,
    "1.5e+300": 1.5e300,
    "-0.00012": -0.00012,
    1234.5: 1234.5,
    "9007199254740992.0": 2 ** 53,
  };
  for (const [text, number] of Object.entries(spelled)) assert.equal(pythonFloat(number), text);
});

test("JSON is read as it stands, and written as Python writes it", () => {
  const text =
    '{\n  "b": [\n    18446744073709551615,\n    1e-06\n  ],\n  "a": {},\n  "c": [],\n  "d": "\\u2764\\"\\u007f\\n"\n}';
  const value = parse(text.replace("\\u007f", "\u007f"));
  const due = { b: [2n ** 64n - 1n, 1e-6], a: new Map(), c: [], d: '❤"\u007f\n' };
  assert.deepEqual(value, new Map(Object.entries(due)));
  assert.equal(indented(value), text.replace("\\u007f", "\u007f"));
  assert.equal(
    compact(value),
    '{"a":{},"b":[18446744073709551615,1e-06],"c":[],"d":"\\u2764\\"\u007f\\n"}',
  );
  const broken = [
    "",
    "{",
    "[1,]",
    '{"a":1,}',
    '{"a" 1}',
    "[1 2]",
    "01",
    "1.",
    "+1",
    "NaN",
    "'a'",
    '"\t"',
    "[]]",
    '{"a":1,"a":2}',
    "nul",
    "{1:2}",
    ",",
    "[,1]",
  ];
  for (const wrong of broken) assert.throws(() => parse(wrong), SyntaxError, wrong);
});
