/** Reports a value once: encoded here, sealed for the server, sent to the shuffling service. */

import { Document, Report } from "./document.js";
import { AlreadyReported, NotCounted, OverhandError } from "./errors.js";
import { storeOf } from "./keeping.js";
import { Requests, jsonOf } from "./requests.js";

const NEVER_ANEW =
  "the value is not sealed again for another document: where the services make the noise, each " +
  "time would cost epsilon once more, and a service may ask for it as often as it likes";
const NO_DIGEST =
  "digest is missing: the services make the noise of this plan, and a shuffling service that " +
  "hands out a key of its own would read every value. Get the document's digest from whoever runs " +
  "the server: `overhand verify document.json` prints it. Or say trustService: true, if nobody is " +
  "to be protected from the shuffling service";

/**
 * @typedef {object} Options
 * @property {string} [digest] the document's, from elsewhere than the shuffling service: then no
 *   other plan or key is accepted. If the services make the noise it must be given.
 * @property {boolean} [trustService] take the key from the shuffling service, whatever it is
 * @property {string} [token] the client's, if one is needed
 * @property {import("./keeping.js").Store | null} [store] where the reports of this person are
 *   kept; IndexedDB if there is one. `null` keeps nothing: for programs that report for many.
 * @property {typeof globalThis.fetch} [fetch] what requests are made with
 */

/**
 * A client of the shuffling service at `url`, whose document was fetched and checked.
 *
 * @param {string} url
 * @param {Options} [options]
 * @returns {Promise<Client>}
 */
export async function connect(url, options = {}) {
  const { digest, trustService = false, token, fetch = globalThis.fetch } = options;
  if (digest !== undefined && !/^[0-9a-f]{64}$/.test(digest)) {
    throw new OverhandError("argument", "digest must have 64 lower-case hexadecimal digits");
  }
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new OverhandError("argument", "token must have no spaces, and letters of ASCII alone");
  }
  const client = new Client(
    new Requests(url, token, fetch),
    storeOf(options.store),
    digest,
    trustService,
  );
  await client.document();
  return client;
}

/** Talks to one shuffling service: `connect` makes it. */
export class Client {
  /** @type {Promise<Document> | undefined} */
  #document;
  #requests;
  #store;
  #digest;
  #trustService;

  /**
   * @param {Requests} requests
   * @param {import("./keeping.js").Store | null} store
   * @param {string | undefined} digest
   * @param {boolean} trustService
   */
  constructor(requests, store, digest, trustService) {
    this.#requests = requests;
    this.#store = store;
    this.#digest = digest;
    this.#trustService = trustService;
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
   * once; but never if the services make the noise.
   *
   * @param {unknown} value a bit, a number, a label or a list, as the plan says
   * @returns {Promise<void>}
   */
  async report(value) {
    const document = await this.document();
    const report = await this.#encoded(document, value);
    try {
      await this.send(report.bytes);
    } catch (error) {
      if (!(error instanceof NotCounted) || error.code !== "outdated") throw error;
      const other = await this.#otherThan(document, error);
      await this.send((await this.#encoded(other, value)).bytes);
    }
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
      new NotCounted("outdated", `${refusal.message}; ${why}`, refusal.reports, { cause });
    if (refused.plan.noiseBy === "services") throw still(NEVER_ANEW);
    this.#document = undefined;
    const document = await this.document().catch((error) => {
      throw still(`and there is no other document: ${error.message}`, error);
    });
    if (document.digest === refused.digest) {
      throw still("but its document is the one that the report was made for");
    }
    return document;
  }

  /**
   * The report of a value, kept if it is to be.
   *
   * It is made before it is kept, and forgotten if another one was kept meanwhile.
   *
   * @param {Document} document
   * @param {unknown} value
   */
  async #encoded(document, value) {
    const coordinates = document.plan.kind.coordinates(value);
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
    const advice = left.length > 0 ? `; ${left.length} not known to be delivered: resend them` : "";
    throw new AlreadyReported(
      `${made.length} of ${plan.reports} reports that the plan allows one person are made${advice}`,
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
    await this.#store?.delivered(digest, id);
  }
}
