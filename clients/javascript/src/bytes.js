/** Bytes, and numbers as they stand in them. */

/**
 * @param {Uint8Array[]} parts
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function concatenated(parts) {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/**
 * @param {Uint8Array} bytes
 * @returns {string}
 */
export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * @param {string} digits
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function unhex(digits) {
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

/**
 * Little-endian numbers below 2^53 in so many bytes each, one after the other.
 *
 * @param {ArrayLike<number>} numbers
 * @param {number} width
 */
export function toBytes(numbers, width) {
  const bytes = new Uint8Array(numbers.length * width);
  for (let i = 0; i < numbers.length; i++) {
    let left = numbers[i];
    for (let place = i * width; place < (i + 1) * width; place++) {
      bytes[place] = left % 256;
      left = Math.floor(left / 256);
    }
  }
  return bytes;
}

/**
 * What `toBytes` wrote.
 *
 * @param {Uint8Array} bytes
 * @param {number} width at most 6
 */
export function toNumbers(bytes, width) {
  const numbers = new Float64Array(bytes.length / width);
  for (let i = 0; i < numbers.length; i++) {
    for (let place = (i + 1) * width - 1; place >= i * width; place--) {
      numbers[i] = numbers[i] * 256 + bytes[place];
    }
  }
  return numbers;
}

/**
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}
