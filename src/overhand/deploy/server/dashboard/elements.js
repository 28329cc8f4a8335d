// Pieces of the page, made of what the server said: text nodes, never markup.

import * as words from "./words.js";

export function cell(tag, ...content) {
  const element = document.createElement(tag);
  element.append(...content);
  return element;
}

// A cell that names its row.
export function rowName(text) {
  const name = cell("th", text);
  name.scope = "row";
  return name;
}

export const paragraph = (text) => cell("p", text);

export function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]));
}

// A point in words, and in bold; answers what it says.
export function showReading(target, label, source, hint) {
  if (source === null) {
    target.textContent = hint;
    return hint;
  }
  const decimals = words.decimalsFor(source);
  const strong = document.createElement("b");
  strong.textContent = words.number(source.value, decimals);
  const range = words.between(source, decimals);
  target.replaceChildren(`${label}: `, strong, range ? ` (${range})` : "");
  return target.textContent;
}

// What is finished of a level, and what is out of the ordinary there.
export function levelRow(level) {
  const bar = document.createElement("progress");
  bar.max = Math.max(1, level.batches);
  bar.value = level.published;
  bar.setAttribute("aria-label", `Level ${words.number(level.level)}`);
  const share = `${words.number(level.published)} of ${words.number(level.batches)}`;
  const finished = cell("td", share, bar);
  for (const [text, bad] of words.levelNotes(level)) {
    const note = cell("span", text);
    note.className = bad ? "note bad" : "note";
    finished.append(note);
  }
  return cell("tr", rowName(words.number(level.level)), cell("td", words.number(level.size)), finished);
}
