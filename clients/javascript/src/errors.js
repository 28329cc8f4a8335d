/**
 * What can go wrong. Every error of this package is an `OverhandError`, and its `code` says which:
 *
 * - `argument`: an option of `connect` that cannot be used, or `choose` where nobody recommends
 * - `insecure`: an `http://` address of another machine, and `insecure` is not set
 * - `value`: a value that is not of the kind that the plan counts, or contexts or a reward that are
 *   not what a recommender learns from
 * - `policy`: one that the server did not sign for this document, or an older one than the last
 * - `not-chosen`: a reward, and no choice that is not reported yet
 * - `document`: a public document that is malformed, or was edited
 * - `version`: a document of another version of the protocol
 * - `digest`: a document that is not the one that was pinned, or none was pinned and one must be
 * - `unsupported`: a plan whose users would have to draw noise that this client does not draw
 * - `store`: reports that cannot be kept
 * - `unreachable`: no answer, however often it was tried
 * - `refused`: the service said no
 * - `nonsense`: an answer that no shuffling service gives
 * - `outdated`: the service runs another plan or key now
 * - `already-reported`: all the reports that the plan allows one person are made
 *
 * @typedef {"argument" | "insecure" | "value" | "document" | "version" | "digest" | "unsupported"
 *   | "store" | "unreachable" | "refused" | "nonsense" | "outdated" | "already-reported" | "policy"
 *   | "not-chosen"} Code
 */

export class OverhandError extends Error {
  /**
   * @param {Code} code
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(code, message, options) {
    super(message, options);
    this.name = "OverhandError";
    /** Which error it is, for programs: words may change, codes do not. */
    this.code = code;
  }
}

/**
 * Reports that were not counted, or of which it is not known.
 *
 * `reports` are their bytes: to try once more, `send` those again, as often as you like. To report
 * the value again instead would cost privacy again, and might count twice.
 */
export class NotCounted extends OverhandError {
  /**
   * @param {Code} code
   * @param {string} message
   * @param {readonly Uint8Array[]} reports
   * @param {ErrorOptions} [options]
   */
  constructor(code, message, reports, options) {
    super(code, message, options);
    this.name = "NotCounted";
    this.reports = reports;
  }
}

/**
 * A device has made all the reports that the plan allows one person, and makes no other.
 *
 * `reports` are those that are not known to be delivered: `resend` sends them.
 */
export class AlreadyReported extends NotCounted {
  /**
   * @param {string} message
   * @param {readonly Uint8Array[]} reports
   */
  constructor(message, reports) {
    super("already-reported", message, reports);
    this.name = "AlreadyReported";
  }
}
