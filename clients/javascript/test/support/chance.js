/** Chance that repeats, so that no test fails by accident. */

import { createCipheriv } from "node:crypto";

/** AES-128-CTR with a fixed key. */
export function fixed(seed) {
  const stream = createCipheriv("aes-128-ctr", Buffer.alloc(16, seed), Buffer.alloc(16));
  return (length) => new Uint8Array(stream.update(Buffer.alloc(length)));
}
