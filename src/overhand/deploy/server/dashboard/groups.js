// How many users every group has, and the mean of what they hold, read off the private sum.

import { Asked } from "./asking.js";
import { cell, rowName } from "./elements.js";
import * as words from "./words.js";

const MOST_ROWS = 100;
const NOTHING = { t: 0, groups: [] };

const part = (id) => document.getElementById(id);

export class Groups extends Asked {
  #shown = null;

  constructor(ask, changed) {
    super(ask, NOTHING, ({ t }) => t, changed);
  }

  show(isShown) {
    const { t, groups } = this.found;
    part("groups-link").hidden = !isShown;
    part("groups-card").hidden = !isShown || !groups.length;
    if (!isShown || this.#shown === this.found) return;
    this.#shown = this.found;
    const left = groups.length - MOST_ROWS;
    part("groups-note").textContent = `After ${words.count(t, "user")}, each number with its own 95 % interval. `
      + (left > 0 ? `${words.count(left, "more group")} at v1/groups.` : "");
    part("group-rows").replaceChildren(...groups.slice(0, MOST_ROWS).map(groupRow));
  }
}

function groupRow({ label, count, mean, note }) {
  const numbers = [words.withRange(count), mean === null ? note : words.withRange(mean)];
  return cell("tr", rowName(label), ...numbers.map((text) => cell("td", text)));
}
