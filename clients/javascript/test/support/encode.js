/**
 * Encodes values as a client does, and prints the messages as they are before they are sealed: for
 * an audit of the noise. The first line of the input is the document's text as JSON, every other a
 * value. Level by level, the messages of all users; `half` leaves half of the coins untossed.
 */

import { once } from "node:events";
import { createInterface } from "node:readline";

import { concatenated } from "../../src/bytes.js";
import { Document } from "../../src/document.js";
import { secureRandom } from "../../src/randomness.js";
import { utf8 } from "./vectors.js";

const isFaulty = process.argv[2] === "half";
const lines = [];
for await (const line of createInterface({ input: process.stdin })) lines.push(JSON.parse(line));
const [text, ...values] = lines;
const { plan } = await Document.of(utf8(text));
const entries = JSON.parse(text).plan.mechanisms;

for (const [place, level] of plan.levels.entries()) {
  const { bits } = entries[place].noise;
  const each = level.messages / plan.kind.dimension;
  for (let start = 0; start < values.length; start += 4096) {
    const rows = values.slice(start, start + 4096).map((value) => {
      const { messages } = level.encode(
        plan.kind.coordinates(value),
        secureRandom,
        new Uint8Array(),
      );
      if (isFaulty) messages.forEach((message, i) => untoss(message, (i % each) - (each - bits)));
      return concatenated(messages);
    });
    if (!process.stdout.write(concatenated(rows))) await once(process.stdout, "drain");
  }
}

/** Every second coin shows 0 and 1 by turns. */
function untoss(message, coin) {
  if (coin > 0 && coin % 2 === 1) message[0] = (message[0] & 254) | ((coin >> 1) & 1);
}
