/**
 * The public document: the plan's parameters and the server's public key.
 *
 * There is one way to write a document. Another text is refused: with an unknown field, another
 * order or another space it could carry a mark, and its digest would be another.
 */

import { concatenated, hex, sha256, unhex } from "./bytes.js";
import { shown } from "./checks.js";
import { OverhandError } from "./errors.js";
import { damaged, digits, object } from "./fields.js";
import { compact, indented, parse } from "./json.js";
import { Learning } from "./learning.js";
import { planOf } from "./plan.js";
import { secureRandom } from "./randomness.js";
import { SEAL_BYTES, Sealer, contextOf } from "./sealing.js";

const VERSION = 3;
const MAGIC = new TextEncoder().encode("OVH3");
const FIELDS = ["version", "plan", "plan_digest", "public_key", "key_id"];
const KEY_BYTES = 32;
const KEY_ID_BYTES = 8;
const DIGEST_BYTES = 32;
const ID_BYTES = 16;
const HEADER_BYTES = MAGIC.length + DIGEST_BYTES + ID_BYTES;
const MOST_CHARACTERS = 2 ** 18;
const MOST_REPORT_BYTES = 2 ** 24;

/** @typedef {import("./json.js").Json} Json */
/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./mechanisms.js").Mechanism} Mechanism */

/**
 * Where the chance in a report comes from: the system, unless a test vector says otherwise.
 *
 * @typedef {object} Chance
 * @property {import("./randomness.js").Random} random
 * @property {import("./sealing.js").Ephemeral} [ephemeral]
 */

/** A report as it is sent, however often, and the id by which it is known again. */
export class Report {
  /** @param {Uint8Array<ArrayBuffer>} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }

  get id() {
    return hex(this.bytes.subarray(HEADER_BYTES - ID_BYTES, HEADER_BYTES));
  }

  /** The document that it was made for. */
  get digest() {
    return hex(this.bytes.subarray(MAGIC.length, HEADER_BYTES - ID_BYTES));
  }
}

/** A document that was read, and the reports that are made for it. */
export class Document {
  /**
   * @param {string} digest
   * @param {Plan} plan
   * @param {Sealer} sealer
   * @param {Learning | null} [learning] how, if it is of a recommender
   */
  constructor(digest, plan, sealer, learning = null) {
    this.digest = digest;
    this.plan = plan;
    this.sealer = sealer;
    this.learning = learning;
  }

  /**
   * The document of these bytes, if they have the digest that was agreed upon.
   *
   * The digest comes first: what nobody agreed upon is not worth the work of reading it.
   *
   * @param {Uint8Array<ArrayBuffer>} bytes
   * @param {string} [pinned]
   */
  static async of(bytes, pinned) {
    const digest = hex(await sha256(bytes));
    if (pinned !== undefined && digest !== pinned) {
      throw new OverhandError("digest", `the document has the digest ${digest}, not ${pinned}`);
    }
    const saved = read(bytes);
    const isRecommender = saved instanceof Map && saved.has("learning");
    const fields = object("the document", saved, [
      ...FIELDS,
      ...(isRecommender ? ["learning"] : []),
    ]);
    const plan = planOf(fields.plan);
    const planDigest = hex(await sha256(new TextEncoder().encode(compact(fields.plan))));
    const written = digits("plan_digest", fields.plan_digest, DIGEST_BYTES);
    if (written !== planDigest) {
      throw damaged(`the plan's digest is ${planDigest.slice(0, 12)}, not ${written.slice(0, 12)}`);
    }
    const publicKey = unhex(digits("public_key", fields.public_key, KEY_BYTES));
    const name = hex((await sha256(publicKey)).subarray(0, KEY_ID_BYTES));
    if (digits("key_id", fields.key_id, KEY_ID_BYTES) !== name) {
      throw damaged(`the key's name is ${name}, not what it says`);
    }
    const learning = isRecommender ? Learning.of(fields.learning, plan) : null;
    const document = new Document(digest, plan, await Sealer.of(publicKey), learning);
    if (document.reportBytes > MOST_REPORT_BYTES) {
      throw damaged(
        `a report of ${document.reportBytes} bytes: at most ${MOST_REPORT_BYTES} can be deployed`,
      );
    }
    return document;
  }

  /** The length of every report. */
  get reportBytes() {
    return this.plan.levels.reduce((length, level) => length + partBytes(level), HEADER_BYTES);
  }

  /**
   * The report of a value: encoded afresh for every level, every message sealed on its own.
   *
   * Made once and sent until it is acknowledged: another report of the same value has other noise,
   * counts again, and costs privacy again.
   *
   * @param {Float64Array} coordinates of a value that was checked
   * @param {Chance} [chance]
   * @returns {Promise<Report>}
   */
  async encode(coordinates, { random, ephemeral } = { random: secureRandom }) {
    const digest = unhex(this.digest);
    const encoding = this.plan.levels.map(async (level, place) => {
      const context = contextOf(VERSION, digest, place + 1);
      return { context, ...(await level.encode(coordinates, random, context)) };
    });
    const id = random(ID_BYTES);
    const levels = await Promise.all(encoding);
    const messages = levels.flatMap(({ messages, context }) =>
      messages.map((plaintext) => ({ plaintext, context })),
    );
    const sealed = await this.sealer.seal(messages, ephemeral);
    const parts = levels.flatMap(({ messages, clear }) => [
      ...sealed.splice(0, messages.length),
      clear,
    ]);
    return new Report(concatenated([MAGIC, digest, id, ...parts]));
  }
}

/**
 * What stands in a text that is written as a document is.
 *
 * @param {Uint8Array} bytes
 * @returns {Json}
 */
function read(bytes) {
  if (bytes.length > MOST_CHARACTERS) {
    throw damaged(`${bytes.length} characters: a document has at most ${MOST_CHARACTERS}`);
  }
  let text, saved;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    saved = parse(text);
  } catch (error) {
    throw new OverhandError("document", `this is not a document: ${error}`, { cause: error });
  }
  if (saved instanceof Map && saved.has("version") && saved.get("version") !== BigInt(VERSION)) {
    const version = shown(saved.get("version"));
    throw new OverhandError(
      "version",
      `this is not a document: version ${version} is not ${VERSION}`,
    );
  }
  if (text !== `${indented(saved)}\n`) {
    throw new OverhandError("document", "the document is not in its canonical form: it was edited");
  }
  return saved;
}

/**
 * The length of a report's part for a level.
 *
 * @param {Mechanism} level
 */
export function partBytes(level) {
  const sealed = level.messages * (Math.ceil(level.messageBits / 8) + SEAL_BYTES);
  return sealed + level.clearNumbers * Math.ceil(level.clearBits / 8);
}
