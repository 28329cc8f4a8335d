/**
 * Chance: words of the system's randomness, and what is made of them.
 *
 * A coin is a comparison of a random word with a binary fraction, both whole numbers, so its law is
 * exact; no noise is made of floating-point numbers. (Values are rounded by uniform ones: the
 * guarantee does not rest on how.)
 */

const MOST_AT_ONCE = 65536; // bytes: crypto.getRandomValues refuses more

/**
 * So many random bytes: where everything here comes from.
 *
 * @typedef {(length: number) => Uint8Array} Random
 */

/**
 * A probability numerator / 2^bits, with 1 to 64 bits.
 *
 * @typedef {{ numerator: bigint, bits: number }} BinaryFraction
 */

/** @type {Random} */
export function secureRandom(length) {
  const bytes = new Uint8Array(length);
  for (let start = 0; start < length; start += MOST_AT_ONCE) {
    crypto.getRandomValues(bytes.subarray(start, start + MOST_AT_ONCE));
  }
  return bytes;
}

/**
 * Independent coins that show 1 with exactly this probability.
 *
 * @param {Random} random
 * @param {number} count
 * @param {BinaryFraction} probability
 * @returns {Uint8Array}
 */
export function coins(random, count, probability) {
  const { numerator, bits } = probability;
  if (2n * numerator === 1n << BigInt(bits)) return fairCoins(random, count);
  const width = bits <= 16 ? 2 : bits <= 32 ? 4 : 8;
  const threshold = numerator << BigInt(8 * width - bits);
  const words = viewOf(random(width * count));
  const shown = new Uint8Array(count);
  if (width === 8) {
    for (let i = 0; i < count; i++) shown[i] = Number(words.getBigUint64(8 * i, true) < threshold);
    return shown;
  }
  const below = Number(threshold); // at most 32 bits: exact
  for (let i = 0; i < count; i++) {
    const word = width === 2 ? words.getUint16(2 * i, true) : words.getUint32(4 * i, true);
    shown[i] = word < below ? 1 : 0;
  }
  return shown;
}

/**
 * The bits of random bytes, highest first.
 *
 * @param {Random} random
 * @param {number} count
 */
function fairCoins(random, count) {
  const packed = random(Math.ceil(count / 8));
  return Uint8Array.from({ length: count }, (_, i) => (packed[i >> 3] >> (7 - (i & 7))) & 1);
}

/**
 * Uniform multiples of 2^-53 below 1: for rounding, never for noise.
 *
 * @param {Random} random
 * @param {number} count
 * @returns {Float64Array}
 */
export function uniforms(random, count) {
  const words = viewOf(random(8 * count));
  return Float64Array.from({ length: count }, (_, i) => {
    const low = words.getUint32(8 * i, true) >>> 11;
    const high = words.getUint32(8 * i + 4, true);
    return (high * 2 ** 21 + low) * 2 ** -53;
  });
}

/**
 * A whole number below `count`, each as likely as any other: words above the last multiple of it
 * are drawn again.
 *
 * @param {Random} random
 * @param {number} count at most 2^32
 */
export function below(random, count) {
  for (;;) {
    const word = viewOf(random(4)).getUint32(0, true);
    if (word < 2 ** 32 - (2 ** 32 % count)) return word % count;
  }
}

/** @param {Uint8Array} bytes */
function viewOf(bytes) {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
