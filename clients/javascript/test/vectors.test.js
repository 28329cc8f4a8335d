/** The protocol's test vectors, byte for byte. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { concatenated, hex, sha256, toBytes, unhex } from "../src/bytes.js";
import { Document, partBytes } from "../src/document.js";
import { coordinateSteps } from "../src/mechanisms.js";
import { coins } from "../src/randomness.js";
import { Sealer, contextOf } from "../src/sealing.js";
import { chanceOf, utf8, vectors, word64 } from "./support/vectors.js";

const { documents, refused } = vectors("documents");
const encoded = documents.filter(({ name }) => /^(coins|ballots|pairs|published)-/.test(name));

test("there are vectors of all that is encoded here", () => {
  assert.ok(encoded.length >= 15, `${encoded.length} documents`);
});

for (const vector of documents) {
  test(`document ${vector.name}`, async () => {
    const reading = Document.of(utf8(vector.text), vector.digest);
    if (!encoded.includes(vector)) {
      await assert.rejects(reading, { code: "unsupported" });
      return;
    }
    const document = await reading;
    const { plan } = document;
    assert.equal(document.digest, vector.digest);
    assert.equal(plan.noiseBy, vector.noise_by);
    assert.equal(plan.kind.dimension, vector.dimension);
    assert.equal(document.reportBytes, vector.report_length);
    const entries = JSON.parse(vector.text).plan.mechanisms;
    for (const [place, due] of vector.levels.entries()) {
      const level = plan.levels[place];
      assert.equal(level.messages, due.messages);
      assert.equal(level.messageBits, due.message_bits);
      assert.equal(level.clearNumbers, due.clear_numbers);
      assert.equal(level.clearBits, due.clear_bits);
      assert.equal(partBytes(level), due.part_bytes);
      assert.deepEqual([...coordinateSteps(plan.kind, entries[place].steps)], due.coordinate_steps);
    }
  });
}

for (const { why, text, wrong } of refused) {
  test(`no document: ${why}`, async () => {
    const code = /version/.test(why) && wrong === "content" ? "version" : "document";
    await assert.rejects(Document.of(utf8(text)), { name: "OverhandError", code });
  });
}

for (const [place, report] of vectors("reports").entries()) {
  const vector = encoded.find(({ name }) => name === report.document);
  if (vector === undefined) continue;
  test(`report ${place} for ${report.document}: ${JSON.stringify(report.value)}`, async () => {
    const document = await Document.of(utf8(vector.text));
    const chance = chanceOf(report, JSON.parse(vector.text).plan.mechanisms);
    const coordinates = document.plan.kind.coordinates(report.value);
    assert.deepEqual([...coordinates], report.coordinates);
    const made = await document.encode(coordinates, chance);
    assert.equal(hex(await sha256(made.bytes)), report.report_sha256);
    assert.equal(made.id, report.id);
    assert.equal(made.digest, vector.digest);
    assert.ok(chance.isUsedUp());
  });
}

test("seals", async () => {
  const { digest, pkRm, seals } = vectors("seals");
  const sealer = await Sealer.of(unhex(pkRm));
  for (const { level, info, pt, ikmE, sealed } of seals) {
    const context = contextOf(3, unhex(digest), level);
    assert.equal(hex(context), info);
    const [made] = await sealer.seal([{ plaintext: unhex(pt), context }], () => unhex(ikmE).buffer);
    assert.equal(hex(made), sealed);
  }
});

test("coins", () => {
  for (const { probability, word_bits, words, coins: due } of vectors("coins")) {
    const [numerator, bits] = probability;
    if (2 * numerator === 2 ** bits) continue; // a fair coin takes one bit
    const stream = concatenated(words.map((word) => word64(BigInt(word)).slice(0, word_bits / 8)));
    const shown = coins(() => stream, words.length, { numerator: BigInt(numerator), bits });
    assert.deepEqual([...shown], due);
  }
});

test("numbers stand in as few bytes as their bits need", () => {
  assert.equal(hex(toBytes([1, 258, 2 ** 24 - 1], 3)), "010000020100ffffff");
});
