/**
 * The policies of a recommender, as its server signs them.
 *
 * A policy is public. It counts only with the server's signature: the arm that a person takes may
 * be seen by others, so whoever could make up a policy for one person could ask it any question.
 */

import { concatenated, unhex } from "./bytes.js";
import { OverhandError } from "./errors.js";
import { contentOf } from "./fields.js";
import { parse } from "./json.js";

const PURPOSE = new TextEncoder().encode("overhand policy 1\0");
const MOST_CHARACTERS = 2 ** 20;
const MOST_NUMBER = 2n ** 62n;
const DIGEST_BYTES = 32;
const SIGNATURE_BYTES = 64;

/** @typedef {import("./json.js").Json} Json */

/** The arm of largest `<theta, x> + |width^T x|`. */
export class SignedPolicy {
  /**
   * @param {bigint} number from 1 on
   * @param {bigint} users that it was learnt from
   * @param {Float64Array} theta
   * @param {Float64Array} width row by row
   */
  constructor(number, users, theta, width) {
    this.number = number;
    this.users = users;
    this.theta = theta;
    this.width = width;
  }

  /**
   * The policy of a text, if it is of this document and signed.
   *
   * @param {Uint8Array} bytes
   * @param {import("./learning.js").Learning} learning
   * @param {string} digest of the document
   */
  static async of(bytes, learning, digest) {
    const { policy, document, signature } = read(bytes, learning.dimension);
    if (document !== digest) {
      const others = `${document.slice(0, 12)}, not of ${digest.slice(0, 12)}`;
      throw wrong(`a policy of the document ${others}`);
    }
    if (!(await isSigned(learning.policyKey, signature, policy.signedBytes(digest)))) {
      throw wrong(`policy ${policy.number} is not signed by the server`);
    }
    return policy;
  }

  /**
   * What a signature is of: the numbers themselves, not the way in which they are written.
   *
   * @param {string} digest
   */
  signedBytes(digest) {
    const { theta, width } = this;
    const head = new DataView(new ArrayBuffer(20));
    head.setBigUint64(0, this.number, true);
    head.setBigUint64(8, this.users, true);
    head.setUint32(16, theta.length, true);
    const numbers = new DataView(new ArrayBuffer(8 * (theta.length + width.length)));
    [...theta, ...width].forEach((number, i) => numbers.setFloat64(8 * i, number, true));
    const parts = [head, numbers].map(({ buffer }) => new Uint8Array(buffer));
    return concatenated([PURPOSE, unhex(digest), ...parts]);
  }

  /**
   * What is expected of an arm, and how uncertain that is.
   *
   * @param {Float64Array} x
   */
  score(x) {
    const { theta, width } = this;
    let square = 0;
    for (let k = 0; k < x.length; k++) {
      const along = x.reduce((sum, one, i) => sum + width[i * x.length + k] * one, 0);
      square += along * along;
    }
    return x.reduce((sum, one, i) => sum + theta[i] * one, 0) + Math.sqrt(square);
  }

  /**
   * The arm of the largest score, the first of them if there are several.
   *
   * @param {Float64Array[]} arms
   */
  choose(arms) {
    const scores = arms.map((x) => this.score(x));
    return scores.reduce((best, score, arm) => (score > scores[best] ? arm : best), 0);
  }

  /** @param {SignedPolicy} other */
  isOlderThan(other) {
    return this.number < other.number || (this.number === other.number && this.users < other.users);
  }
}

/** @param {string} why */
export function wrong(why, /** @type {unknown} */ cause = undefined) {
  return new OverhandError("policy", why, { cause });
}

/**
 * @param {Uint8Array} bytes
 * @param {number} dimension
 */
function read(bytes, dimension) {
  try {
    if (bytes.length > MOST_CHARACTERS)
      throw new Error(`${bytes.length} characters are more than ${MOST_CHARACTERS}`);
    const saved = parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    const width = listed("width", contentOf(saved, "width"), dimension);
    const policy = new SignedPolicy(
      counted("number", contentOf(saved, "number")),
      counted("users", contentOf(saved, "users")),
      numbers("theta", contentOf(saved, "theta"), dimension),
      Float64Array.from(width.flatMap((row) => [...numbers("width", row, dimension)])),
    );
    const document = digits("document", contentOf(saved, "document"), DIGEST_BYTES);
    const signature = digits("signature", contentOf(saved, "signature"), SIGNATURE_BYTES);
    return { policy, document, signature };
  } catch (error) {
    throw wrong(`this is not a policy: ${/** @type {Error} */ (error).message}`, error);
  }
}

/**
 * @param {string} name
 * @param {Json} value
 */
function counted(name, value) {
  if (typeof value !== "bigint" || value < 1n || value > MOST_NUMBER) {
    throw new Error(`${name} is not a whole number from 1 to 2^62`);
  }
  return value;
}

/**
 * @param {string} name
 * @param {Json} saved
 * @param {number} bytes
 */
function digits(name, saved, bytes) {
  const text = typeof saved === "string" ? saved : "";
  if (text.length !== 2 * bytes || !/^[0-9a-f]*$/.test(text)) {
    throw new Error(`${name} is not ${bytes} bytes in hexadecimal digits`);
  }
  return text;
}

/**
 * @param {string} name
 * @param {Json} saved
 * @param {number} length
 */
function listed(name, saved, length) {
  if (Array.isArray(saved) && saved.length === length) return saved;
  throw new Error(`${name} is not a list of ${length}`);
}

/**
 * @param {string} name
 * @param {Json} saved
 * @param {number} length
 */
function numbers(name, saved, length) {
  const found = listed(name, saved, length).map((one) =>
    typeof one === "bigint" ? Number(one) : one,
  );
  if (!found.every(Number.isFinite)) throw new Error(`${name} has numbers that are not finite`);
  return Float64Array.from(/** @type {number[]} */ (found));
}

/**
 * @param {string} key
 * @param {string} signature
 * @param {Uint8Array<ArrayBuffer>} content
 */
async function isSigned(key, signature, content) {
  try {
    const imported = await crypto.subtle.importKey("raw", unhex(key), "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", imported, unhex(signature), content);
  } catch (error) {
    const { name } = /** @type {Error} */ (error);
    if (name !== "NotSupportedError") return false; // a key that is none signs nothing
    throw new OverhandError("unsupported", "there is no Ed25519 here, which signs policies", {
      cause: error,
    });
  }
}
