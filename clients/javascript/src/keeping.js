/**
 * The reports that a device has made: none is made again, and each can be sent again.
 *
 * A report is kept before anyone has it, and its bytes are forgotten once it was delivered; that
 * it was made is not. If what is kept is lost, nobody knows that reports were made.
 */

import { OverhandError } from "./errors.js";

const REPORTS = "reports";
const BY_DIGEST = "by digest";

/**
 * A report by its id, and its bytes, or null if it was delivered.
 *
 * @typedef {{ id: string, bytes: Uint8Array<ArrayBuffer> | null }} Kept
 */

/**
 * One that is to be kept.
 *
 * @typedef {{ id: string, bytes: Uint8Array<ArrayBuffer> }} Made
 */

/**
 * Where reports are kept, by the digest of the document that they were made for.
 *
 * @typedef {object} Store
 * @property {(digest: string, report: Made, most: number) => Promise<boolean>} add
 *   keep a report, durably, unless `most` of this digest were made: in one step, whoever else adds
 * @property {(digest: string) => Promise<Kept[]>} made all of this digest
 * @property {(digest: string, id: string) => Promise<void>} delivered forget its bytes
 */

/**
 * For one person, as long as this program runs.
 *
 * @returns {Store}
 */
export function memoryStore() {
  /** @type {Map<string, Map<string, Kept>>} */
  const kept = new Map();
  const of = (/** @type {string} */ digest) => kept.get(digest) ?? new Map();
  return {
    async add(digest, report, most) {
      const made = of(digest);
      if (made.size >= most) return false;
      kept.set(digest, made.set(report.id, { ...report }));
      return true;
    },
    async made(digest) {
      return [...of(digest).values()];
    },
    async delivered(digest, id) {
      if (of(digest).has(id)) of(digest).set(id, { id, bytes: null });
    },
  };
}

/**
 * For the person who uses this browser: in IndexedDB, which all tabs of an origin share.
 *
 * @param {string} [name] of the database
 * @returns {Store}
 */
export function browserStore(name = "overhand") {
  return {
    add: (digest, { id, bytes }, most) =>
      within(name, "readwrite", async (reports) => {
        const count = await settled(reports.index(BY_DIGEST).count(digest));
        if (count >= most) return false;
        await settled(reports.add({ digest, id, bytes }));
        return true;
      }),
    made: (digest) =>
      within(name, "readonly", (reports) => settled(reports.index(BY_DIGEST).getAll(digest))),
    delivered: (digest, id) =>
      within(name, "readwrite", async (reports) => {
        const made = await settled(reports.get([digest, id]));
        if (made !== undefined) await settled(reports.put({ digest, id, bytes: null }));
      }),
  };
}

/**
 * What some work in one transaction came to, once it is on disk.
 *
 * @template T
 * @param {string} name
 * @param {"readonly" | "readwrite"} mode
 * @param {(reports: IDBObjectStore) => Promise<T>} work
 * @returns {Promise<T>}
 */
async function within(name, mode, work) {
  try {
    const database = await opened(name);
    try {
      const transaction = database.transaction(REPORTS, mode, { durability: "strict" });
      const done = new Promise((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onabort = () => reject(transaction.error);
      });
      const [result] = await Promise.all([work(transaction.objectStore(REPORTS)), done]);
      return result;
    } finally {
      database.close();
    }
  } catch (error) {
    throw new OverhandError("store", `reports cannot be kept in IndexedDB: ${error}`, {
      cause: error,
    });
  }
}

/**
 * @param {string} name
 * @returns {Promise<IDBDatabase>}
 */
function opened(name) {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => {
    const reports = request.result.createObjectStore(REPORTS, { keyPath: ["digest", "id"] });
    reports.createIndex(BY_DIGEST, "digest");
  };
  return settled(request);
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/**
 * The store that was given, or that of the browser.
 *
 * @param {Store | null | undefined} store
 * @returns {Store | null}
 */
export function storeOf(store) {
  if (store === null) return null;
  if (store !== undefined) {
    const isStore = [store.add, store.made, store.delivered].every(
      (one) => typeof one === "function",
    );
    if (isStore) return store;
    throw new OverhandError("argument", "store must have the functions add, made and delivered");
  }
  if (typeof indexedDB !== "undefined") return browserStore();
  throw new OverhandError(
    "store",
    "there is no IndexedDB here: say store: memoryStore() for one person as long as this program " +
      "runs, a store of your own, or store: null if every report is another person's",
  );
}
