"use strict";

// ---- Memory: the same sums as memory.py, whose results the page was written with.
const memory = document.getElementById("memory");
const given = Object.fromEntries(
  Object.entries(memory.dataset).map(([name, text]) => [name, Number(text)]));
const field = (id) => document.getElementById(id);

function bytesText(count) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) {
    count /= 1000;
    power += 1;
  }
  const digits = power === 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return `${count.toFixed(digits)} ${units[power]}`;
}

function seatBytes(context) {
  return Math.min(Math.ceil(context / given.pageSize), given.mostPages) * given.pageBytes;
}

function seatsIn(machine, context) {
  const room = Math.trunc(machine * (1 - given.leftOver)) - given.fixed;
  const one = seatBytes(context);
  if (!one) return room >= 0 ? given.maxSeats : 0;
  return Math.max(0, Math.min(Math.floor(room / one), given.maxSeats));
}

function showMemory() {
  const context = bounded(field("context"), given.maxContext);
  const seats = bounded(field("seats"), given.maxSeats);
  const kv = seats * seatBytes(context);
  const total = given.fixed + kv;
  field("total").textContent = bytesText(total);
  field("kv").textContent = bytesText(kv);
  field("kv-bar").style.flexGrow = kv;
  for (const row of field("machines").rows) {
    const machine = Number(row.dataset.bytes);
    row.className = total <= machine * (1 - given.leftOver) ? "fits" : "short";
    row.querySelector(".track i").style.width = `${Math.min(100 * total / machine, 100)}%`;
    row.cells[2].textContent = seatsIn(machine, context) || "none";
  }
}

function bounded(input, most) {
  return Math.min(Math.max(Math.round(Number(input.value)) || 1, 1), most);
}

// A slider of contexts is logarithmic: each step is the same factor.
const toContext = (place) => Math.round(given.maxContext ** (place / 1000));
const toPlace = (context) =>
  given.maxContext > 1 ? 1000 * Math.log(context) / Math.log(given.maxContext) : 1000;

function coupled(number, range, toNumber, toRange, most) {
  range.value = toRange(bounded(number, most));
  number.addEventListener("input", () => {
    range.value = toRange(bounded(number, most));
    showMemory();
  });
  number.addEventListener("change", () => { number.value = bounded(number, most); });
  range.addEventListener("input", () => {
    number.value = toNumber(Number(range.value));
    showMemory();
  });
}

const same = (value) => value;
coupled(field("context"), field("context-range"), toContext, toPlace, given.maxContext);
coupled(field("seats"), field("seats-range"), same, same, given.maxSeats);
memory.addEventListener("submit", (event) => event.preventDefault());

// ---- Layers: the graph after a pass, from the edits of all passes up to it.
const LINE = /^(.*?) +(\S+ = .*?|output\(.*?\))(?: {2}# (.*))?$/;

function linesAfter(stages, index) {
  let lines = [];
  stages.slice(0, index + 1).forEach((stage, number) => {
    const marked = number === index && index > 0;
    const found = [];
    let place = 0;
    for (const edit of stage.edits) {
      const end = edit.first + edit.removed;
      found.push(...lines.slice(place, edit.first));
      if (marked) {
        found.push(...lines.slice(edit.first, end).map((line) => ({ ...line, mark: "removed" })));
      }
      found.push(...edit.added.map((text) => ({ text, mark: marked ? "added" : "" })));
      place = end;
    }
    lines = [...found, ...lines.slice(place)];
  });
  return lines;
}

function element(name, kind, ...parts) {
  const made = document.createElement(name);
  made.className = kind;
  made.append(...parts);
  return made;
}

function drawn(line, layer) {
  const [, type, call, origin] = LINE.exec(line.text) ?? ["", "", line.text, layer];
  const short = call.replaceAll(`${layer.replaceAll(".", "_")}_`, "");
  const [value, ...rest] = short.split(" = ");
  const name = element("b", "", value);
  const tail = rest.length ? ` = ${rest.join(" = ")}` : "";
  const row = element("div", `line ${line.mark}`,
    element("span", "call", name, tail), element("span", "type", type));
  row.dataset.value = value;
  return { row, from: origin === layer ? "the layer itself" : origin.replace(`${layer}.`, "") };
}

function showStage(article, stages, index) {
  const graph = article.querySelector(".graph");
  const parts = [];
  let before = "";
  for (const line of linesAfter(stages, index)) {
    const { row, from } = drawn(line, article.dataset.layer);
    if (from !== before) parts.push(element("div", "from", from));
    before = from;
    parts.push(row);
  }
  graph.replaceChildren(...parts);
  for (const button of article.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", button.dataset.stage === stages[index].name);
  }
}

function light(article, value) {
  for (const row of article.querySelectorAll("[data-value]")) {
    row.classList.toggle("lit", value !== undefined && row.dataset.value === value);
  }
}

for (const article of document.querySelectorAll(".layer")) {
  const stages = JSON.parse(article.querySelector(".stages").textContent);
  for (const button of article.querySelectorAll("button")) {
    const index = stages.findIndex((stage) => stage.name === button.dataset.stage);
    button.addEventListener("click", () => showStage(article, stages, index));
  }
  if (stages.length) showStage(article, stages, stages.length - 1);
  article.addEventListener("mouseover", (event) =>
    light(article, event.target.closest("[data-value]")?.dataset.value));
  article.addEventListener("mouseleave", () => light(article, undefined));
}

// ---- Plan: the rows that hold all words of the filter.
const box = field("filter");
const rows = [...document.querySelectorAll("#instructions tbody tr")];
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
});
