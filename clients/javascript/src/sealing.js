/**
 * Sealing single messages to the server: HPKE (RFC 9180), base mode, X25519, HKDF-SHA256,
 * AES-128-GCM. Every message is sealed on its own: a key shared by the messages of one report
 * would tell which belong together.
 */

import { Aes128Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";

import { concatenated } from "./bytes.js";
import { OverhandError } from "./errors.js";

const AT_ONCE = 16; // seals under way: more would only wait for each other

/** By how much a sealed message is longer: an X25519 key and an AES-GCM tag. */
export const SEAL_BYTES = 48;

/**
 * What a message of a level is bound to: version, document and level.
 *
 * @param {number} version
 * @param {Uint8Array} digest
 * @param {number} level from 1 on
 */
export function contextOf(version, digest, level) {
  const name = new TextEncoder().encode(`overhand/${version}`);
  return concatenated([name, digest, Uint8Array.of(level)]);
}

/**
 * Where ephemeral keys come from: nothing, and the library draws them. Test vectors give material.
 *
 * @typedef {() => ArrayBuffer | undefined} Ephemeral
 */

/** Seals messages to one public key. */
export class Sealer {
  /**
   * @param {CipherSuite} suite
   * @param {CryptoKey} key
   */
  constructor(suite, key) {
    this.suite = suite;
    this.key = key;
  }

  /**
   * @param {Uint8Array<ArrayBuffer>} publicKey
   */
  static async of(publicKey) {
    const suite = new CipherSuite({
      kem: new DhkemX25519HkdfSha256(),
      kdf: new HkdfSha256(),
      aead: new Aes128Gcm(),
    });
    try {
      const key = await suite.kem.deserializePublicKey(publicKey);
      const sealer = new Sealer(suite, key);
      await sealer.sealed(new Uint8Array(), new Uint8Array());
      return sealer;
    } catch (error) {
      throw new OverhandError("document", "the document's key is one that nothing is sealed to", {
        cause: error,
      });
    }
  }

  /**
   * One ciphertext for every message, a few at a time: between them a page can do other things.
   *
   * @param {{ plaintext: Uint8Array, context: Uint8Array }[]} messages
   * @param {Ephemeral} [ephemeral]
   */
  async seal(messages, ephemeral) {
    /** @type {Uint8Array[]} */
    const ciphertexts = [];
    for (let start = 0; start < messages.length; start += AT_ONCE) {
      const some = messages.slice(start, start + AT_ONCE);
      const sealed = some.map(({ plaintext, context }) =>
        this.sealed(plaintext, context, ephemeral),
      );
      ciphertexts.push(...(await Promise.all(sealed)));
    }
    return ciphertexts;
  }

  /**
   * @param {Uint8Array} plaintext
   * @param {Uint8Array} context
   * @param {Ephemeral} [ephemeral]
   */
  async sealed(plaintext, context, ephemeral) {
    const ekm = ephemeral?.();
    const told = { recipientPublicKey: this.key, info: Uint8Array.from(context) };
    const sender = await this.suite.createSenderContext(
      ekm === undefined ? told : { ...told, ekm },
    );
    const ciphertext = await sender.seal(Uint8Array.from(plaintext));
    return concatenated([new Uint8Array(sender.enc), new Uint8Array(ciphertext)]);
  }
}
