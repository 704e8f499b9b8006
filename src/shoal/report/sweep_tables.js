"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["blue", "orange", "green", "pink", "ochre", "violet", "red", "gray"].map((name) => `var(--${name})`);
const DASHES = { kept: "", held_out: "6 4" };
const SPLITS = { kept: "kept", held_out: "held out" };
const MISSING = "–";
const NARROW = window.matchMedia("(max-width: 40rem)");
let current = 0;

// Building: every name becomes a text node, so that none can become markup.
const $ = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const percent = (value) => (value === null || value === undefined ? MISSING : ((100 * value) / data.scale).toFixed(1));
const titleOf = (method) => data.titles[method] || method;
const distinct = (values) => [...new Set(values)];
const single = (run) => run.test.length === 1;
const domainsOf = (run) => run.test.join(" + ");
const counted = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
const colourOf = (dataset, domain) => COLOURS[Math.max(0, data.domains[dataset].indexOf(domain)) % COLOURS.length];

function short(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1).replace("e+", "e").replace(".0e", "e") : String(Number(value.toPrecision(4)));
}

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// Tables. A column is {name, words, smallFirst, marked, error}: marked if a cell has an arrow, error is
// the length of its longest error. All numbers leave that much room, so that they line up. A cell is
// {text, value, error, place, worse, long}.
const sorting = new Map();

function numeric(text) {
  const value = parseFloat(text.replace("−", "-"));
  return Number.isNaN(value) ? null : value;
}

function compared(a, b, descending) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return descending ? -order : order;
}

function cellOf(cell, column, first) {
  const kinds = [
    column.marked && "marked", column.words && "words", cell.long && "long", cell.worse && "worse",
    cell.place === 1 && "first", cell.place === 2 && "second",
  ].filter(Boolean).join(" ");
  return make(first ? "th" : "td", { class: kinds || null, scope: first ? "row" : null, title: first ? cell.text : null },
    make("span", { class: "number" }, cell.text),
    ...(column.error ? [" ", make("span", { class: "error", style: `min-width: ${0.88 * (column.error + 2)}ch` }, cell.error ? `± ${cell.error}` : "")] : []));
}

function table(box, key, columns, rows, initial = null) {
  if (!sorting.has(key)) sorting.set(key, initial);
  const body = make("tbody");
  const heads = columns.map((column, index) => {
    const button = make("button", { type: "button" }, column.name);
    button.addEventListener("click", () => {
      const before = sorting.get(key);
      const descending = before && before.name === column.name ? !before.descending : !(column.words || column.smallFirst);
      sorting.set(key, { name: column.name, descending });
      fillBody();
    });
    return make("th", { scope: "col", class: column.words ? "words" : null, "data-column": index }, button);
  });
  function fillBody() {
    const by = sorting.get(key);
    const at = by ? columns.findIndex((column) => column.name === by.name) : -1;
    heads.forEach((head, index) =>
      head.setAttribute("aria-sort", index !== at ? "none" : by.descending ? "descending" : "ascending"));
    const ordered = at < 0 ? rows : [...rows].sort((a, b) => compared(a.cells[at].value, b.cells[at].value, by.descending));
    body.replaceChildren(...ordered.map((row) =>
      make("tr", { "data-method": row.method, class: row.baseline ? "baseline" : null },
        ...row.cells.map((cell, index) => cellOf(cell, columns[index], index === 0)))));
    filter();
  }
  fillBody();
  const made = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body);
  box.replaceChildren(made, make("p", { class: "empty", hidden: "" }));
  edges.observe(box);
  edges.observe(made);
  filter();
}

// A table that is wider than its box fades out on the right.
function fade(box) {
  box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}
const edges = new ResizeObserver((seen) => {
  for (const box of new Set(seen.map(({ target }) => target.closest(".scroll")))) if (box) fade(box);
});
document.addEventListener("scroll", ({ target }) => {
  if (target instanceof Element && target.matches(".scroll")) fade(target);
}, true);

const asked = () => $("filter").value.trim();
const wanted = (method) => [method, titleOf(method)].some((name) => name.toLowerCase().includes(asked().toLowerCase()));
const noMatch = () => `No method matches “${asked()}”.`;

// Hides the rows of other methods. A table without any row is replaced by a line.
function filter() {
  for (const row of document.querySelectorAll("tr[data-method]")) row.hidden = !wanted(row.dataset.method);
  const matched = [...data.runs, ...data.failures].some((one) => wanted(one.method));
  for (const made of document.querySelectorAll(".scroll > table")) {
    const none = [...made.tBodies[0].rows].every((row) => row.hidden);
    made.hidden = none;
    made.nextSibling.hidden = !none;
    made.nextSibling.textContent = matched ? "No matching method is in this table." : noMatch();
  }
}

const text = (value, long = false) => ({ text: value, value: value, long });
const number = (value, shown) => ({ text: value === null ? MISSING : shown, value });

// On a narrow screen, the average comes before its cells.
function placesOf(grid) {
  const places = grid.columns.map((_, index) => index);
  const average = grid.columns.lastIndexOf("Avg");
  return NARROW.matches && average > 0 ? [average, ...places.filter((index) => index !== average)] : places;
}

function gridTable(box, key, grid, initial) {
  const places = placesOf(grid);
  const columns = [{ name: "Method", words: true }].concat(places.map((index) => {
    const cells = grid.lines.map((line) => line.cells[index]);
    return {
      name: grid.columns[index],
      smallFirst: grid.smallest.includes(index),
      marked: cells.some(([, , , worse]) => worse),
      error: Math.max(0, ...cells.map(([, error]) => error.length)),
    };
  }));
  const rows = grid.lines.map((line) => ({
    method: line.name,
    baseline: line.name === data.baseline,
    cells: [text(titleOf(line.name))].concat(places.map((index) => line.cells[index]).map(([shown, error, place, worse]) =>
      ({ text: shown, value: numeric(shown), error, place, worse }))),
  }));
  table(box, key, columns, rows, initial);
}

function gridTables(box, kind, grids) {
  box.replaceChildren(...grids.map((grid) => {
    const scroll = make("div", { class: "scroll" });
    gridTable(scroll, `${kind} ${grid.title}`, grid, null);
    return make("div", {}, make("h3", {}, grid.title), scroll);
  }));
  filter();
}
