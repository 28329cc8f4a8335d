/** Reports a value once: encoded here, sealed for the server, sent to the shuffling service. */

import { Document, Report } from "./document.js";
import { AlreadyReported, NotCounted, OverhandError } from "./errors.js";
import { storeOf } from "./keeping.js";
import { Chooser, recommenderOf } from "./recommending.js";
import { Requests, jsonOf } from "./requests.js";

const MAX_AGE = 60; // seconds
const NEVER_ANEW =
  "the value is not sealed again for another document: if the services make the noise, each time " +
  "would cost epsilon once more, and a service could ask for it as often as it likes";
const NO_DIGEST =
  "digest is missing: the services make the noise of this plan, and a shuffling service that " +
  "hands out a key of its own could read every value. Get the document's digest from the server's " +
  "operator: `overhand verify document.json` prints it, and so does `sha256sum document.json`. Or " +
  "set trustService: true if nobody needs protection from the shuffling service";

/**
 * @typedef {object} Options
 * @property {string} [digest] the document's, from elsewhere than the shuffling service: then no
 *   other plan or key is accepted. If the services make the noise it must be given.
 * @property {boolean} [trustService] take the key from the shuffling service, whatever it is
 * @property {string} [token] the client's, if one is needed
 * @property {boolean} [insecure] allow `http://` to another machine, where anyone on the way can
 *   read the token, see who reports, and change the answers
 * @property {import("./keeping.js").Store | null} [store] where the reports of this person are
 *   kept; IndexedDB if there is one. `null` keeps nothing: for programs that report for many.
 * @property {number} [maxAge] seconds for which a recommender's policy is used before a newer one
 *   is asked for; 60 unless told
 * @property {typeof globalThis.fetch} [fetch] what requests are made with
 */

/**
 * A client of the shuffling service at `url`, whose document was fetched and checked.
 *
 * @param {string | URL} url
 * @param {Options} [options]
 * @returns {Promise<Client>}
 */
export async function connect(url, options = {}) {
  check(Object(options) === options, "options must be an object");
  const {
    digest,
    trustService = false,
    token,
    insecure = false,
    fetch = globalThis.fetch,
    maxAge = MAX_AGE,
  } = options;
  checkText("digest", digest, /^[0-9a-f]{64}$/, "have 64 lower-case hexadecimal digits");
  checkText("token", token, /^[\x21-\x7e]+$/, "have no spaces, and letters of ASCII alone");
  check(typeof trustService === "boolean", "trustService must be true or false");
  check(typeof insecure === "boolean", "insecure must be true or false");
  check(typeof fetch === "function", "fetch must be a function");
  check(Number.isFinite(maxAge) && maxAge > 0, "maxAge must be a number of seconds above 0");
  const client = new Client(
    new Requests(url, token, fetch, insecure),
    storeOf(options.store),
    digest,
    trustService,
    maxAge,
  );
  await client.document();
  return client;
}

/**
 * @param {boolean} isRight
 * @param {string} words
 */
function check(isRight, words) {
  if (!isRight) throw new OverhandError("argument", words);
}

/**
 * @param {string} name
 * @param {unknown} text
 * @param {RegExp} form
 * @param {string} words
 */
function checkText(name, text, form, words) {
  check(
    text === undefined || (typeof text === "string" && form.test(text)),
    `${name} must ${words}`,
  );
}

/** Talks to one shuffling service: `connect` makes it. */
export class Client {
  /** @type {Promise<Document> | undefined} */
  #document;
  #requests;
  #store;
  #digest;
  #trustService;
  #chooser;

  /**
   * @param {Requests} requests
   * @param {import("./keeping.js").Store | null} store
   * @param {string | undefined} digest
   * @param {boolean} trustService
   * @param {number} [maxAge]
   */
  constructor(requests, store, digest, trustService, maxAge = MAX_AGE) {
    this.#requests = requests;
    this.#store = store;
    this.#digest = digest;
    this.#trustService = trustService;
    this.#chooser = new Chooser(requests, maxAge);
  }

  /**
   * The public document, fetched and checked once.
   *
   * @returns {Promise<Document>}
   */
  document() {
    this.#document ??= this.#fetched().catch((error) => {
      this.#document = undefined;
      throw error;
    });
    return this.#document;
  }

  async #fetched() {
    const document = await Document.of(
      await this.#requests.request("GET", "/v1/document"),
      this.#digest,
    );
    if (this.#digest === undefined && !this.#trustService && document.plan.noiseBy === "services") {
      throw new OverhandError("digest", NO_DIGEST);
    }
    return document;
  }

  /**
   * Report one value; resolves when it is counted for good, or rejects with `NotCounted`.
   *
   * If the service says that it runs another plan or key now, the value is encoded anew for that,
   * once; but never if the services make the noise, nor what came of a recommendation: another
   * recommender may mean other features.
   *
   * @param {unknown} value a bit, a number, a label or a list, as the plan says; for a recommender
   *   what came of the last choice, from 0 to 1
   * @returns {Promise<void>}
   */
  async report(value) {
    const document = await this.document();
    if (document.learning !== null) {
      const coordinates = this.#chooser.taken(recommenderOf(document), value);
      return this.send((await this.#encoded(document, coordinates)).bytes);
    }
    const report = await this.#encoded(document, document.plan.kind.coordinates(value));
    try {
      await this.send(report.bytes);
    } catch (error) {
      if (!(error instanceof NotCounted) || error.code !== "outdated") throw error;
      const other = await this.#otherThan(document, error);
      const coordinates = other.plan.kind.coordinates(value);
      await this.send((await this.#encoded(other, coordinates)).bytes);
    }
  }

  /**
   * The arm that a recommender's newest policy takes for a person with these contexts: which row.
   *
   * All is computed here. The policy counts only if the server signed it for this document. The arm
   * that a person takes may be seen by others, and is not protected: only contexts and reward are.
   *
   * @param {readonly ArrayLike<number>[]} contexts a row of features for every arm
   * @returns {Promise<number>}
   */
  async choose(contexts) {
    return this.#chooser.choose(recommenderOf(await this.document()), contexts);
  }

  /**
   * The recommender's newest policy, or null if there is none yet.
   *
   * @returns {Promise<import("./policies.js").SignedPolicy | null>}
   */
  async policy() {
    return this.#chooser.policy(recommenderOf(await this.document()));
  }

  /**
   * The document that a refused report is made anew for.
   *
   * There must be another one: who refuses reports for the document that it gives out may well have
   * counted them, and a second one would count twice.
   *
   * @param {Document} refused
   * @param {NotCounted} refusal
   */
  async #otherThan(refused, refusal) {
    const still = (/** @type {string} */ why, /** @type {unknown} */ cause = refusal) =>
      new NotCounted("outdated", refusal.message + why, refusal.reports, { cause });
    if (refused.plan.noiseBy === "services") throw still(`; ${NEVER_ANEW}`);
    this.#document = undefined;
    const document = await this.document().catch((error) => {
      throw still(`, and there is no other document: ${error.message}`, error);
    });
    if (document.digest === refused.digest) {
      throw still(", but its document is the one that the report was made for");
    }
    return document;
  }

  /**
   * The report of a value that was checked, kept if it is to be.
   *
   * It is made before it is kept, and forgotten if another one was kept meanwhile.
   *
   * @param {Document} document
   * @param {Float64Array} coordinates
   */
  async #encoded(document, coordinates) {
    await this.#checkLeft(document);
    const report = await document.encode(coordinates);
    const { digest, plan } = document;
    if (this.#store !== null && !(await this.#store.add(digest, report, plan.reports))) {
      await this.#checkLeft(document);
      throw new OverhandError("store", "the store kept no report, and does not say which it has");
    }
    return report;
  }

  /** @param {Document} document */
  async #checkLeft({ digest, plan }) {
    const made = this.#store === null ? [] : await this.#store.made(digest);
    if (made.length < plan.reports) return;
    const left = made.flatMap(({ bytes }) => (bytes === null ? [] : [bytes]));
    const advice = `; ${left.length} of them are not known to be delivered: resend them`;
    throw new AlreadyReported(
      `${made.length} of the ${plan.reports} reports that the plan allows per person are made, so ` +
        `1 more cannot be made${left.length > 0 ? advice : ""}`,
      left,
    );
  }

  /**
   * How many reports this person has made for the document, and how many of them are not known to
   * be delivered.
   *
   * @returns {Promise<{ made: number, undelivered: number, allowed: number }>}
   */
  async status() {
    const { digest, plan } = await this.document();
    const made = this.#store === null ? [] : await this.#store.made(digest);
    const undelivered = made.filter(({ bytes }) => bytes !== null).length;
    return { made: made.length, undelivered, allowed: plan.reports };
  }

  /**
   * Send the reports that are kept and not known to be delivered, byte for byte as they were made.
   *
   * @returns {Promise<number>} how many were counted
   */
  async resend() {
    const { digest } = await this.document();
    const made = this.#store === null ? [] : await this.#store.made(digest);
    let counted = 0;
    for (const { bytes } of made) {
      if (bytes === null) continue;
      await this.send(bytes);
      counted += 1;
    }
    return counted;
  }

  /**
   * Send a report that is encoded already, until it is counted.
   *
   * @param {Uint8Array<ArrayBuffer>} bytes
   * @returns {Promise<void>}
   */
  async send(bytes) {
    check(ArrayBuffer.isView(bytes), "a report must be the bytes that NotCounted has");
    let answer;
    try {
      answer = await this.#requests.request("POST", "/v1/reports", bytes);
    } catch (error) {
      if (!(error instanceof OverhandError)) throw error;
      throw new NotCounted(error.code, error.message, [bytes], { cause: error });
    }
    if (jsonOf(answer)?.status !== "counted") {
      throw new NotCounted("nonsense", "POST /v1/reports was answered, but not with `counted`", [
        bytes,
      ]);
    }
    const { digest, id } = new Report(bytes);
    try {
      await this.#store?.delivered(digest, id);
    } catch {
      // It is counted, whatever becomes of the note: at worst the same bytes are sent once more.
    }
  }
}
