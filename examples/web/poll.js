/** The poll's page: one vote, and the running shares with their bands. */

import { AlreadyReported, NotCounted, connect } from "overhand-client";

const EVERY = 1000; // milliseconds between looks at the results
const WORDS = {
  ready: "You have not voted yet.",
  sending: "Your vote is on its way …",
  counted: "Your vote is counted. Thank you!",
  undelivered:
    "Your vote is sealed and kept here, but nobody took it. Load the page again to send it.",
  refused: "The poll takes no more votes.",
  broken: "Voting does not work here",
};

const buttons = [...document.querySelectorAll("#choices button")];
const state = document.querySelector("#state");

function show(name, more = "") {
  state.dataset.state = name;
  state.textContent = more === "" ? WORDS[name] : `${WORDS[name]}: ${more}`;
  for (const button of buttons) button.disabled = name !== "ready";
}

/** What to say of an error: a vote that is sealed is never sealed again. */
function explain(error) {
  if (error instanceof AlreadyReported)
    show(error.reports.length > 0 ? "undelivered" : "counted");
  else if (error instanceof NotCounted)
    show(error.code === "refused" ? "refused" : "undelivered");
  else show("broken", error.message);
}

async function vote(client, choice) {
  show("sending");
  try {
    await client.report(choice);
    show("counted");
  } catch (error) {
    explain(error);
  }
}

/** Where this person stands: what was not delivered before is sent now, as it was made. */
async function begin(deployment) {
  try {
    const client = await connect(deployment.shuffler, {
      digest: deployment.digest,
    });
    const { made, undelivered } = await client.status();
    if (undelivered > 0) show("sending");
    await client.resend();
    show(made > 0 ? "counted" : "ready");
    for (const button of buttons)
      button.addEventListener("click", () => vote(client, button.value));
  } catch (error) {
    explain(error);
  }
}

function shareOf(votes, total) {
  return Math.min(Math.max(votes / total, 0), 1);
}

/** A bar for every choice, in the order of the buttons, which is that of the plan's labels. */
function draw({ t, value, low, high }) {
  const rows = buttons.map((button, place) => {
    const [from, share, to] = [low, value, high].map((end) =>
      shareOf(end[place], t),
    );
    const bar = document.createElement("dd");
    const words = document.createElement("span");
    words.textContent = `${(100 * share).toFixed(1)} %`;
    words.title = `${(100 * from).toFixed(1)} % to ${(100 * to).toFixed(1)} %`;
    for (const [name, start, end] of [
      ["band", from, to],
      ["share", 0, share],
    ]) {
      const part = document.createElement("i");
      part.className = name;
      part.style.setProperty("left", `${100 * start}%`);
      part.style.setProperty("width", `${100 * (end - start)}%`);
      bar.append(part);
    }
    bar.append(words);
    const term = document.createElement("dt");
    term.textContent = button.textContent.trim();
    return [term, bar];
  });
  document.querySelector("#results").replaceChildren(...rows.flat());
  const counted = document.querySelector("#counted");
  counted.dataset.votes = String(t);
  counted.textContent = `The first ${t.toLocaleString("en")} votes.`;
}

async function look() {
  try {
    const { estimate } = await (await fetch("/results")).json();
    if (estimate !== null) draw(estimate);
  } catch {
    document.querySelector("#counted").textContent =
      "The results cannot be read just now.";
  }
  setTimeout(look, EVERY);
}

const deployment = await (await fetch("/deployment.json")).json();
const dashboard = document.querySelector("#dashboard");
dashboard.href = deployment.dashboard;
dashboard.hidden = false;
look();
await begin(deployment);
