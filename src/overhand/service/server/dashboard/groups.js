// How many users every group has, and the mean of what they hold, read off the private sum.

import { Asked } from "./asking.js";
import { cell } from "./elements.js";
import * as words from "./words.js";

const MOST_ROWS = 100;
const NOTHING = { t: 0, groups: [] };

const part = (id) => document.getElementById(id);

export class Groups {
  #asked;
  #found = NOTHING;
  #shown = null;

  // `ask()` answers what the groups are; `changed()` is told when there is something else to show.
  constructor(ask, changed) {
    this.#asked = new Asked(ask, (answer) => {
      if (answer.t < this.#found.t) return;
      this.#found = answer;
      changed();
    });
  }

  // Another plan's: the groups from before are not of it.
  forget() {
    this.#found = NOTHING;
  }

  follow() {
    this.#asked.follow();
  }

  load() {
    return this.#asked.load();
  }

  show(isShown) {
    const { t, groups } = this.#found;
    part("groups-link").hidden = !isShown;
    part("groups-card").hidden = !isShown || !groups.length;
    if (!isShown || this.#shown === this.#found) return;
    this.#shown = this.#found;
    const left = groups.length - MOST_ROWS;
    part("groups-note").textContent = `After ${words.count(t, "user")}, each number with its own 95 % interval. `
      + (left > 0 ? `${words.count(left, "more group")} at v1/groups.` : "");
    part("group-rows").replaceChildren(...groups.slice(0, MOST_ROWS).map(groupRow));
  }
}

function groupRow({ label, count, mean, note }) {
  const name = cell("th", label);
  name.scope = "row";
  return cell("tr", name, cell("td", read(count)), cell("td", mean === null ? note : read(mean)));
}

function read(number) {
  const decimals = words.decimalsFor(number);
  return `${words.number(number.value, decimals)} (${words.between(number, decimals)})`;
}
