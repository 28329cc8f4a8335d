/** Requests to a shuffling service: tried until there is an answer that settles it. */

import { concatenated } from "./bytes.js";
import { shown } from "./checks.js";
import { OverhandError } from "./errors.js";

const ATTEMPTS = 8;
const FIRST_WAIT = 0.2; // seconds
const LONGEST_WAIT = 30;
const PATIENCE = 60;
const SLOWEST_LINE = 65536; // bytes a second that a long report has on its way
const MOST_ANSWER_BYTES = 2 ** 24;
const MOST_SHOWN = 200;
const TRY_AGAIN = new Set([408, 429, 500, 502, 503, 504]);
const TOO_MANY_REQUESTS = 429;
const NOT_FOUND = 404;
const CONFLICT = 409;
// A host as `URL` writes it, which has one spelling for every address.
const THIS_MACHINE = /^(?:localhost|127(?:\.\d+){3}|\[::1\]|\[::ffff:7f..:[^:]+\])$/;

/**
 * What a service said.
 *
 * @typedef {{ status: number, body: Uint8Array<ArrayBuffer>, retryAfter: number }} Answer
 */

/** Talks to one address. */
export class Requests {
  /**
   * @param {string | URL} url
   * @param {string | undefined} token
   * @param {typeof globalThis.fetch} fetch
   * @param {boolean} [insecure]
   * @param {(seconds: number) => Promise<void>} [wait]
   */
  constructor(
    url,
    token,
    fetch,
    insecure = false,
    wait = (seconds) => new Promise((go) => setTimeout(go, 1000 * seconds)),
  ) {
    this.url = addressOf(url, insecure);
    this.fetch = fetch;
    this.wait = wait;
    /** What a report is sent with, and nothing else is. @type {Record<string, string>} */
    this.headers = {
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      "content-type": "application/octet-stream",
    };
  }

  /**
   * The body of the answer 200, or an error whose code says why there is none: `unreachable`,
   * `refused`, or `outdated` if the service certainly took nothing and runs another plan.
   *
   * @overload
   * @param {"GET" | "POST"} method
   * @param {string} path
   * @param {Uint8Array<ArrayBuffer>} [body]
   * @param {false} [mayMiss]
   * @returns {Promise<Uint8Array<ArrayBuffer>>}
   */
  /**
   * The same, or null if the service has nothing there.
   *
   * @overload
   * @param {"GET" | "POST"} method
   * @param {string} path
   * @param {Uint8Array<ArrayBuffer> | undefined} body
   * @param {true} mayMiss
   * @returns {Promise<Uint8Array<ArrayBuffer> | null>}
   */
  /**
   * @param {"GET" | "POST"} method
   * @param {string} path
   * @param {Uint8Array<ArrayBuffer>} [body]
   * @param {boolean} [mayMiss]
   */
  async request(method, path, body, mayMiss = false) {
    let wait = FIRST_WAIT;
    let isCertain = true;
    /** @type {{ code: import("./errors.js").Code, words: string, cause?: unknown }} */
    let failure = { code: "unreachable", words: "it was not tried" };
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      if (attempt > 0) await this.wait(wait * (0.5 + Math.random()));
      let answer;
      try {
        answer = await this.asked(method, path, body);
      } catch (error) {
        failure = {
          code: "unreachable",
          words: `no answer from ${this.url} (${error})`,
          cause: error,
        };
        [wait, isCertain] = [Math.min(2 * wait, LONGEST_WAIT), false];
        continue;
      }
      if (answer.status === 200) return answer.body;
      if (answer.status === NOT_FOUND && mayMiss) return null;
      failure = { code: codeOf(answer.status), words: `${answer.status}: ${wordsOf(answer)}` };
      if (answer.status === CONFLICT && isCertain) failure.code = "outdated";
      if (!TRY_AGAIN.has(answer.status)) break;
      isCertain &&= answer.status === TOO_MANY_REQUESTS;
      wait = Math.min(Math.max(2 * wait, answer.retryAfter), LONGEST_WAIT);
    }
    const { code, words, cause } = failure;
    throw new OverhandError(code, `${method} ${path} failed: ${words}`, { cause });
  }

  /**
   * No redirect is followed and no cookie is kept: nobody is to send a client elsewhere, or to mark
   * it.
   *
   * @param {"GET" | "POST"} method
   * @param {string} path
   * @param {Uint8Array<ArrayBuffer>} [body]
   * @returns {Promise<Answer>}
   */
  async asked(method, path, body) {
    const patience = PATIENCE + Math.ceil((body?.length ?? 0) / SLOWEST_LINE);
    const response = await this.fetch.call(undefined, this.url + path, {
      method,
      headers: body === undefined ? {} : this.headers,
      body: body ?? null,
      cache: "no-store",
      credentials: "omit",
      redirect: "manual",
      referrerPolicy: "no-referrer",
      signal: AbortSignal.timeout(1000 * patience),
    });
    return {
      status: response.status,
      body: await contentOf(response),
      retryAfter: secondsOf(response.headers.get("retry-after")),
    };
  }
}

/**
 * An address as `URL` writes it, so that no other parser finds another host in it.
 *
 * @param {string | URL} given
 * @param {boolean} insecure
 */
function addressOf(given, insecure) {
  const url = given instanceof URL ? given.href : given;
  const isWeb = typeof url === "string" && /^https?:\/\/[^/?#@]+(?:\/[^?#]*)?$/.test(url);
  if (!isWeb || !URL.canParse(url)) {
    throw new OverhandError(
      "argument",
      `${shown(url)} is not an address: it starts with http:// or https://`,
    );
  }
  const { protocol, hostname, href } = new URL(url);
  if (protocol === "http:" && !insecure && !isThisMachine(hostname)) {
    throw new OverhandError(
      "insecure",
      `${shown(url)} is another machine, and http:// is not encrypted: anyone on the way could ` +
        "read the token, see who reports, and change the answers. Use https://, or set " +
        "insecure: true if that network is yours alone",
    );
  }
  return href.replace(/\/+$/, "");
}

/**
 * By what is written, never by a look-up: its answer may be another tomorrow. Browsers keep names
 * below `localhost` here; Node asks the network for them.
 *
 * @param {string} hostname
 */
function isThisMachine(hostname) {
  const isBrowser = "isSecureContext" in globalThis;
  return THIS_MACHINE.test(hostname) || (isBrowser && hostname.endsWith(".localhost"));
}

/**
 * No service sends clients elsewhere, but the network of a hotel does.
 *
 * @param {number} status 0 is a redirect that a browser hides
 */
function codeOf(status) {
  return status < 400 ? "nonsense" : "refused";
}

/**
 * The body of an answer, unless it is longer than any that a service gives.
 *
 * @param {Response} response
 */
async function contentOf(response) {
  const reader = response.body?.getReader();
  /** @type {Uint8Array[]} */
  const parts = [];
  let length = 0;
  for (let part = await reader?.read(); part?.value; part = await reader?.read()) {
    length += part.value.length;
    if (length > MOST_ANSWER_BYTES) {
      await reader?.cancel();
      throw new Error(`an answer of more than ${MOST_ANSWER_BYTES} bytes`);
    }
    parts.push(part.value);
  }
  return concatenated(parts);
}

/**
 * What Retry-After asks for, if it is a number and not a date.
 *
 * @param {string | null} header
 */
function secondsOf(header) {
  return header !== null && /^\d{1,9}$/.test(header) ? Number(header) : 0;
}

/**
 * What the service says went wrong: as much of it as is fit to be shown.
 *
 * @param {Answer} answer
 */
function wordsOf(answer) {
  const said = jsonOf(answer.body)?.error;
  const words = typeof said === "string" ? said.replace(/\p{C}/gu, "").slice(0, MOST_SHOWN) : "";
  return words || (answer.status === 0 ? "a redirect" : "no reason");
}

/**
 * The object that an answer is, if it is one.
 *
 * @param {Uint8Array} body
 * @returns {Record<string, unknown> | undefined}
 */
export function jsonOf(body) {
  try {
    const value = JSON.parse(new TextDecoder().decode(body));
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}
