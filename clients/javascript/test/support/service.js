/** A shuffling service that tests put words into, and what was sent to it. */

import { Client } from "../../src/client.js";
import { Requests } from "../../src/requests.js";
import { utf8, vectors } from "./vectors.js";

/** @param {string} name of a document of the vectors */
export function documentOf(name) {
  const found = vectors("documents").documents.find((document) => document.name === name);
  return { text: found.text, digest: found.digest };
}

export const COUNTED = () => new Response('{"status": "counted"}');

/** @param {number} status @param {object} [headers] */
export function refusal(status, headers = {}) {
  return () => new Response(JSON.stringify({ error: `said ${status}` }), { status, headers });
}

/** Answers `GET /v1/document` with a text, and reports as it is told, the last answer for good. */
export class Service {
  constructor(text, ...answers) {
    this.text = text;
    this.answers = answers.length > 0 ? answers : [COUNTED];
    this.received = [];
    this.requests = [];
    this.waited = [];
    this.fetch = async (url, options) => {
      this.requests.push({ url, options });
      if (options.method === "GET") {
        return typeof this.text === "string" ? new Response(utf8(this.text)) : this.text();
      }
      this.received.push(Buffer.from(options.body).toString("hex"));
      return this.answers.length > 1 ? this.answers.shift()() : this.answers[0]();
    };
  }

  /** A client that waits for nothing. */
  client({ store = null, digest, trustService = true, token, maxAge } = {}) {
    const wait = async (seconds) => void this.waited.push(seconds);
    const requests = new Requests("https://service.example/", token, this.fetch, false, wait);
    return new Client(requests, store, digest, trustService, maxAge);
  }
}
