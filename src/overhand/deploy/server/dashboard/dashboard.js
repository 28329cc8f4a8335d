// The page: keeps what the server said, and shows it. Data becomes text nodes, never markup.

import { Bars } from "./bars.js";
import { Chart, dropOne } from "./chart.js";
import { Connection } from "./connection.js";
import { levelRow, pairs, paragraph, showReading } from "./elements.js";
import { Groups } from "./groups.js";
import { Hindsight } from "./hindsight.js";
import { NOT_PROTECTED, Recommender, UNTOLD } from "./recommender.js";
import * as words from "./words.js";

const MOST_POINTS = 500;
const MOST_BARS = 40;
const LONGEST_LIST = 200;
const MOST_ALARMS = 50;
const ANNOUNCE_EVERY = 10_000;
const PATIENCE = 10_000;
const COLUMNS = ["t", "value", "low", "high"];
const TITLES = {
  bit: "Running count", histogram: "Running histogram", binned: "Running histogram",
  grouped: "Running groups",
};
const BARRED = { histogram: "Bucket", binned: "Bin", grouped: "Cell" };
const STATES = {
  connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", gone: "Server gone",
};

const part = (id) => document.getElementById(id);
const emptySeries = () => ({ t: [], value: [], low: [], high: [] });

let status = null;
let estimate = null;
let levels = [];
let alarms = [];
let heard = { alarms: [] };
let series = emptySeries();
let coordinate = 0;
let view = "sum";
let loaded = false;
let announcedAt = 0;
let drawing = false;

// What the server says

async function ask(path) {
  const reply = await fetch(path, { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

async function catchUp() {
  heard = { alarms: [] };
  const answer = await ask("v1/status");
  if (digestOf(status?.plan) !== digestOf(answer.plan)) {
    coordinate = 0;
    series = emptySeries();
    loaded = false;
    recommender.forget();
    groups.forget();
  }
  status = answer;
  // Events may have overtaken the answer.
  levels = heard.levels ?? answer.levels;
  alarms = together(answer.alarms, heard.alarms);
  estimate = heard.estimate?.t >= (answer.estimate?.t ?? 0) ? heard.estimate : answer.estimate;
  showFrame();
  show();
  await (isLearning() ? recommender.load() : loadHistory());
  if (isGrouped()) await groups.load();
}

const isLearning = () => status?.plan.is_recommender === true;
const isGrouped = () => status !== null && kind() === "grouped";

const together = (old, fresh) => [...new Set([...old, ...fresh])].slice(-MOST_ALARMS);

async function loadHistory() {
  const wanted = coordinate;
  const answer = await ask(`v1/history?coordinate=${wanted}`);
  if (wanted !== coordinate) return;
  series = Object.fromEntries(COLUMNS.map((column) => [column, [...answer[column]]]));
  loaded = true;
  if (estimate) extend(estimate);
  hindsight.follow(coordinate);
  show();
}

const at = (entry, i) => (Array.isArray(entry) ? entry[i] : i === 0 ? entry : undefined);
const reading = (source, i) => (
  { value: at(source.value, i), low: at(source.low, i), high: at(source.high, i) }
);

function extend(latest) {
  const last = series.t.at(-1) ?? -1;
  if (latest.t < last) return;
  if (latest.t === last) for (const column of COLUMNS) series[column].pop();
  const now = { t: latest.t, ...reading(latest, coordinate) };
  for (const column of COLUMNS) series[column].push(now[column]);
  if (series.t.length > MOST_POINTS) dropOne(series);
}

function hearEstimate(data) {
  const latest = JSON.parse(data);
  if (!latest || (estimate && latest.t < estimate.t)) return;
  estimate = heard.estimate = latest;
  if (isLearning()) {
    recommender.follow();
  } else {
    if (loaded) extend(latest);
    hindsight.follow(coordinate);
  }
  if (isGrouped()) groups.follow();
  show();
}

function showLearnt() {
  series = recommender.series;
  loaded = true;
  show();
}

function hearLevels(data) {
  levels = heard.levels = JSON.parse(data);
  show();
}

function hearAlarm(data) {
  let alarm = data;
  try {
    alarm = JSON.parse(data);
  } catch {
    // The server may send the string bare.
  }
  heard.alarms.push(alarm);
  alarms = together(alarms, [alarm]);
  show();
}

// What is shown once per plan

// What clients pin: it changes with the key too.
const digestOf = (plan) => plan?.document ?? plan?.digest;

const kind = () => String(status.plan.values).split(":")[0];
const noun = () => BARRED[kind()] ?? "Coordinate";
const named = (i) => status.plan.names?.[i] ?? `${noun()} ${i}`;

function showFrame() {
  const { plan, guarantee, trust, version } = status;
  part("title").textContent = isLearning() ? "Mean reward so far" : TITLES[kind()] ?? "Running sum";
  part("bars-title").textContent = `All ${noun().toLowerCase()}s`;
  part("trust").textContent = trust;
  part("version").textContent = version;
  const promised = [...words.guarantee(guarantee, plan), ...(isLearning() ? [NOT_PROTECTED] : [])];
  part("guarantee").replaceChildren(...promised.map(paragraph));
  pairs(part("guarantee-numbers"), [
    ["Epsilon", words.tiny(guarantee.epsilon)],
    ["Delta, promised", words.tiny(guarantee.delta)],
    ["Delta, spent", words.tiny(guarantee.delta_spent)],
    ...(Number.isFinite(guarantee.mu) ? [["Mu", words.tiny(guarantee.mu)]] : []),
  ]);
  const digest = document.createElement("code");
  digest.textContent = String(digestOf(plan)).slice(0, 16);
  digest.title = digestOf(plan);
  pairs(part("plan"), [
    ...(plan.most_users > plan.horizon
      ? [["Users expected", words.number(plan.horizon)], ["Users at most", words.number(plan.most_users)]]
      : [["Users", words.number(plan.horizon)]]),
    ["Values", String(plan.values)],
    ...(plan.dimension > 1 ? [[`${noun()}s`, words.number(plan.dimension)]] : []),
    ["Messages per user", words.number(plan.messages_per_user)],
    ["Digest", digest],
  ]);
  showChoice();
}

function showChoice() {
  const { dimension } = status.plan;
  const [list, field] = [part("coordinate-list"), part("coordinate-number")];
  const listed = dimension <= LONGEST_LIST;
  part("coordinate-choice").hidden = !(dimension > 1) || isLearning();
  // A sum of moments says nothing by itself, and its history says it again.
  part("view-choice").hidden = isLearning();
  // Where services make the noise, nothing is to be gained in hindsight.
  part("hindsight-choice").hidden = isLearning() || status.guarantee.noise_by === "services";
  if (isLearning()) view = "sum";
  part("coordinate-noun").textContent = noun();
  [list.hidden, field.hidden] = [!listed, listed];
  field.max = dimension - 1;
  field.value = coordinate;
  const names = String(status.plan.names);
  if (listed && (list.length !== dimension || list.dataset.names !== names)) {
    list.dataset.names = names;
    list.replaceChildren(...Array.from({ length: dimension }, (_, i) => new Option(status.plan.names?.[i] ?? i, i)));
  }
  list.value = coordinate;
}

function choose(i) {
  if (!Number.isInteger(i) || i < 0 || i >= status.plan.dimension || i === coordinate) return;
  coordinate = i;
  series = emptySeries();
  loaded = false;
  announcedAt = 0;
  showChoice();
  show();
  // A failure is the connection's to notice; it asks again when it is back.
  loadHistory().catch(() => {});
}

// What is shown anew with all news, at most once for every picture on the screen

function show() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    showHealth();
    if (!status) return;
    showNumber();
    showCharts();
    showLevels();
    recommender.show(isLearning());
    groups.show(isGrouped());
  });
}

function showHealth() {
  const late = levels.reduce((sum, level) => sum + (level.late ?? 0), 0);
  const good = status?.healthy !== false && alarms.length === 0 && late === 0;
  const chip = part("health");
  chip.hidden = status === null;
  chip.textContent = good ? "Healthy" : "Needs attention";
  chip.dataset.health = good ? "good" : "bad";
  const list = part("alarm-list");
  const newestFirst = [...alarms].reverse().map(String);
  if (late) newestFirst.unshift(`${words.count(late, "batch", "batches")} should have arrived and ${late === 1 ? "has" : "have"} not.`);
  if (!good && !newestFirst.length) newestFirst.push("The server reports that it is not healthy.");
  if ([...list.children].map((item) => item.textContent).join("\n") !== newestFirst.join("\n")) {
    list.replaceChildren(...newestFirst.map((text) => {
      const item = document.createElement("li");
      item.textContent = text;
      return item;
    }));
  }
  part("alarms").hidden = good;
}

function showNumber() {
  const { horizon, dimension, users_before: before = 0 } = status.plan;
  const done = Math.max(0, (estimate?.t ?? 0) - before);
  part("progress").value = horizon > 0 ? Math.min(1, done / horizon) : 0;
  part("users").textContent = words.progress(done, status.plan);
  [part("fallback").hidden, part("fallback").textContent] = [!estimate?.fallback, words.fallback(estimate ?? {}, levels.length)];
  const now = currentReading();
  if (!now) {
    part("number").textContent = "–";
    part("band").textContent = recommender.isUntold ? UNTOLD : words.waiting(levels);
    // An estimate whose reward is still being asked for is no wait worth saying aloud.
    if (!estimate || recommender.isUntold) announce(part("band").textContent);
    document.title = "overhand";
    return;
  }
  const decimals = words.decimalsFor(now);
  const shown = words.number(now.value, decimals);
  const range = words.between(now, decimals);
  part("number").textContent = shown;
  part("number").classList.toggle("long", shown.length > 9);
  const strong = document.createElement("b");
  strong.textContent = range ?? "";
  part("band").replaceChildren(...(range ? [strong, " with\u00a095\u00a0%\u00a0confidence"] : ["no band"]));
  const which = isLearning() ? "Mean reward: " : dimension > 1 ? `${named(coordinate)}: ` : "";
  announce(`${which}${shown}, ${range ?? "no band"}, after ${words.count(done, "user")}`);
  document.title = `${which}${shown} · overhand`;
}

// What the large number is: of a recommender the mean reward, if it is told.
function currentReading() {
  if (!isLearning()) return estimate && reading(estimate, coordinate);
  const end = series.t.length - 1;
  return end < 0 ? null : pointOf(end);
}

// Said aloud now and then: an estimate every second would drown everything else.
function announce(text) {
  const region = part("announcement");
  if (Date.now() - announcedAt < ANNOUNCE_EVERY || region.textContent === text) return;
  announcedAt = Date.now();
  region.textContent = text;
}

const perUser = (entry, users) => (Number.isFinite(entry) && users > 0 ? entry / users : null);

function viewed(source, users) {
  if (view === "sum") return source;
  const { value, low, high } = source;
  return { value: perUser(value, users), low: perUser(low, users), high: perUser(high, users) };
}

function pointOf(i) {
  return viewed({ value: series.value[i], low: series.low[i], high: series.high[i] }, series.t[i]);
}

const hindsight = new Hindsight(part("hindsight"), (i) => ask(`v1/hindsight?coordinate=${i}`), show);

const groups = new Groups(() => ask("v1/groups"), show);

const recommender = new Recommender(() => ask("v1/policy/summary"), showLearnt);

const chart = new Chart(part("chart"), (i) => {
  const said = showReading(
    part("chart-reading"),
    i === null ? "" : `After ${words.count(series.t[i], "user")}`,
    i === null ? null : pointOf(i),
    series.t.length ? "Point at the chart, or use the arrow keys, to read values." : "",
  );
  const told = i === null ? "" : hindsight.reading(series.t[i], viewed);
  part("chart-reading").append(told);
  return said + told;
});

const bars = new Bars(part("bars"), (i) => showReading(
  part("bars-reading"),
  i === null ? "" : named(i),
  i === null ? null : viewed(reading(estimate, i), estimate.t),
  "Bars with 95 % error bars, each on its own. Choose one to follow it above.",
), choose);

const columnsOf = (points) => Object.fromEntries(
  ["value", "low", "high"].map((name) => [name, points.map((point) => point[name])]),
);

function showCharts() {
  const points = series.t.map((_, i) => pointOf(i));
  const columns = columnsOf(points);
  // Of the mean, the first few batches are so wide that nothing else could be seen.
  const isMean = view === "mean" || isLearning();
  const from = isMean ? (series.t.at(-1) ?? 0) / 10 : 0;
  const empty = loaded ? "No estimate yet" : "Loading …";
  const start = status.plan.users_before ?? 0;
  const zero = !isMean && start === 0;
  chart.show({ t: series.t, ...columns }, { start, from, zero, empty, told: hindsight.line(viewed) });
  part("hindsight-gain").textContent = hindsight.gain();

  const { dimension } = status.plan;
  const few = dimension > 1 && dimension <= MOST_BARS;
  const barred = estimate !== null && kind() in BARRED && few;
  part("bars-card").hidden = !barred;
  if (!barred) return;
  const each = Array.from({ length: dimension }, (_, i) => viewed(reading(estimate, i), estimate.t));
  const largest = each.reduce((best, { value }, i) => (value > each[best].value ? i : best), 0);
  bars.show(
    columnsOf(each),
    {
      chosen: coordinate,
      names: status.plan.names,
      summary: `Bar chart of ${dimension} ${noun().toLowerCase()}s; largest: `
        + `${status.plan.names?.[largest] ?? `${noun().toLowerCase()} ${largest}`}.`,
    },
  );
}

let shownLevels = null;

function showLevels() {
  if (levels === shownLevels) return;
  shownLevels = levels;
  const isTree = levels.length > 1;
  part("levels").classList.toggle("single", !isTree);
  part("levels-note").textContent = isTree
    ? "Every user is in one batch of each level. A batch is published once it is full."
    : "Every user is in one batch. It is published once it is full, or was open for long enough.";
  part("level-rows").replaceChildren(...levels.map(levelRow));
}

// The wiring

part("coordinate-list").addEventListener("change", (event) => choose(Number(event.target.value)));
part("coordinate-number").addEventListener("change", (event) => {
  choose(event.target.valueAsNumber);
  event.target.value = coordinate;
});
for (const button of document.getElementsByName("view")) {
  button.addEventListener("change", () => {
    view = button.value;
    show();
  });
}

const connection = new Connection(
  "v1/events",
  { estimate: hearEstimate, levels: hearLevels, alarm: hearAlarm },
  catchUp,
);

function showConnection() {
  const { state, silence } = connection;
  part("connection").dataset.state = state;
  // Only what changed is touched: a screen reader says a state once, not every second.
  const label = part("connection-state");
  if (label.textContent !== STATES[state]) label.textContent = STATES[state];
  const trying = state === "gone" ? ", still trying" : "";
  part("connection-news").hidden = silence === null;
  part("connection-silence").textContent = `${words.duration(silence ?? 0)} ago${trying}`;
}

setInterval(showConnection, 250);
showConnection();
