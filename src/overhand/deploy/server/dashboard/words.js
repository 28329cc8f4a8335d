// Numbers and sentences. Everything here is text: none of it is ever read as markup.

const formats = new Map();

export function number(value, decimals = 0) {
  if (!Number.isFinite(value)) return "–";
  if (!formats.has(decimals)) {
    formats.set(decimals, new Intl.NumberFormat("en", {
      minimumFractionDigits: decimals, maximumFractionDigits: decimals, signDisplay: "negative",
    }));
  }
  return formats.get(decimals).format(value);
}

// As many decimals as the band makes meaningful: two digits of its half-width, no decimals if that
// is 10 or more.
export function decimalsFor({ value, low, high }) {
  const half = (high - low) / 2;
  if (half > 0 && Number.isFinite(half)) {
    return Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(half))));
  }
  return Number.isInteger(value) ? 0 : 3;
}

export function between({ low, high }, decimals) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return null;
  return `${number(low, decimals)} to ${number(high, decimals)}`;
}

// A number and its interval, with as many decimals as that makes meaningful.
export function withRange(source) {
  const decimals = decimalsFor(source);
  return `${number(source.value, decimals)} (${between(source, decimals)})`;
}

export function count(amount, noun, plural = `${noun}s`) {
  return `${number(amount)} ${amount === 1 ? noun : plural}`;
}

export function tiny(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
}

export function duration(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return count(Math.floor(seconds / 86400), "day");
}

function percent(fraction) {
  return `${Number((100 * fraction).toPrecision(4))} %`;
}

// Whose noise hides a person's value, in words.
function noiseMakers(by, honest) {
  if (by === "services") {
    return "The shuffling service and this server each add enough noise: the guarantee holds against either "
      + "of them, whatever all other users do, even if the shuffling service lies.";
  }
  return honest < 1
    ? `It holds as long as at least ${percent(honest)} of the users in a batch add their noise.`
    : "Users make the noise: it holds if everyone in the batch adds their share.";
}

export function guarantee(
  { epsilon, delta, delta_spent: spent, mu, honest, reports, noise_by: by },
  { horizon, most_users: most = horizon },
) {
  const slack = delta > 0 ? `1 in ${number(Math.round(1 / delta))}` : "0";
  const people = reports > 1
    ? `It covers a person who sends up to ${count(reports, "report")}.`
    : "It covers one report per person.";
  return [
    "Whatever else anybody knows, everything that leaves the shufflers looks almost the same whichever "
      + `value one person reports: no outcome becomes more than ${tiny(Math.exp(epsilon))} times as likely `
      + `(epsilon ${tiny(epsilon)}), except with probability ${slack} (delta ${tiny(delta)}).`,
    ...(Number.isFinite(spent) ? [`This plan spends a delta of ${tiny(spent)}.`] : []),
    ...(Number.isFinite(mu)
      ? [`It follows from mu ${tiny(mu)}: all that is ever published tells two values of a person apart as well as `
        + "one number does that is normally distributed about 0 or about mu."]
      : []),
    ...(most > horizon
      ? [`It goes on beyond the ${count(horizon, "user")} that are expected, for at most ${number(most)}: `
        + "only errors grow, slowly."]
      : []),
    `${people} ${noiseMakers(by, honest)}`,
  ];
}

export function progress(done, { horizon, most_users: most = horizon, users_before: before = 0 }) {
  const here = `${number(done)} of ${count(horizon, "user")}${most > horizon ? " expected" : ""}`;
  return before > 0 ? `${here}, after ${number(before)} in earlier plans` : here;
}

export function waiting(levels) {
  const sizes = levels.map(({ size }) => size).filter(Number.isFinite);
  const users = sizes.length ? ` of ${count(Math.min(...sizes), "user")}` : "";
  return `Waiting for the first batch${users}.`;
}

// Why a band is wider than planned. Where there is one level, nothing stands in for what is lost.
export function fallback({ lost_users: lost = 0 }, levels) {
  const still = "the band is wider than planned, but still correct.";
  if (!(lost > 0)) return `A batch is missing, so smaller batches are added up in its place: ${still}`;
  const middle = lost === 1 ? "counts as the middle of what it" : "count as the middle of what they";
  const instead = levels > 1 ? " Smaller ones are added up in their place;" : "";
  const who = levels > 1 ? " whose batches are all lost" : " of theirs";
  return `Batches were lost to unreadable messages.${instead} ${count(lost, "user")}${who} ${middle} may hold: ${still}`;
}

// What is unusual about a level: [words, whether it is bad].
export function levelNotes({ received = 0, published = 0, lost = 0, late = 0, own = 0, garbage = 0 }) {
  const opening = received - published - lost;
  return [
    opening > 0 && [`${count(opening, "batch", "batches")} being opened`, false],
    lost > 0 && [`${count(lost, "batch", "batches")} lost`, true],
    late > 0 && [`${count(late, "batch", "batches")} late`, true],
    own > 0 && [`${count(own, "report")} of value 0 added by the shuffling service`, false],
    garbage > 0 && [`${count(garbage, "message")} unreadable`, true],
  ].filter(Boolean);
}
