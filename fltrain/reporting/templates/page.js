"use strict";
// Tables of the class "sortable" can be sorted by their headings.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.querySelectorAll("th[data-column]")];
  const cell = (row, column) => {
    const found = row.cells[column];
    return found ? (found.dataset.value ?? found.textContent).trim() : "";
  };
  const compare = (column, numeric, sign) => (one, other) => {
    const [a, b] = [cell(one, column), cell(other, column)];
    if (!numeric) return sign * a.localeCompare(b, "en", { numeric: true });
    const [x, y] = [parseFloat(a), parseFloat(b)];
    // What is no number ("diverged", nothing) comes last in either direction.
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return x === y ? 0 : sign * (x < y ? -1 : 1);
  };
  for (const heading of headings) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const numeric = heading.dataset.sort !== "text";
      // Numbers start with the largest; a third click brings the order of the table back.
      const turns = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const next = turns[turns.indexOf(heading.getAttribute("aria-sort")) + 1];
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) heading.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const order = next ? [...rows].sort(compare(Number(heading.dataset.column), numeric, sign)) : rows;
      body.append(...order);
    });
  }
}

// Long tables can be filtered by the texts of their rows.
for (const tools of document.querySelectorAll(".tools[data-for]")) {
  const rows = [...document.querySelectorAll(`#${tools.dataset.for} tbody tr`)];
  if (rows.length < 10) continue;
  tools.hidden = false;
  const groups = document.querySelectorAll(`#${tools.dataset.for} .group`);
  const [input, output] = [tools.querySelector("input"), tools.querySelector("output")];
  const texts = rows.map((row) =>
    ` ${row.dataset.names ?? ""} ${[...row.querySelectorAll("th, td")].map((cell) => cell.textContent).join(" ")} `.toLowerCase().replace(/\s/g, " "),
  );
  const show = () => {
    // All words have to be there; what stands in quotes, as a whole word.
    const words = (input.value.toLowerCase().match(/"[^"]*"|\S+/g) ?? []).map((word) => word.replaceAll('"', " "));
    let count = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      count += !row.hidden;
    });
    // Groups of rows open if the filter finds something in them.
    for (const group of groups) {
      const found = [...group.querySelectorAll("tbody tr")].some((row) => !row.hidden);
      group.hidden = !found;
      group.open = found && (words.length > 0 || groups.length === 1);
    }
    output.textContent = words.length ? `${count} of ${rows.length}` : "";
  };
  input.addEventListener("input", show);
  input.value = new URLSearchParams(location.search).get("filter") ?? "";
  show();
}

// A table that is wider than its frame has a note.
const frames = new ResizeObserver((changes) => {
  for (const { target } of changes) target.classList.toggle("wide", target.scrollWidth > target.clientWidth + 1);
});
document.querySelectorAll(".frame").forEach((frame) => frames.observe(frame));

// On a phone, long tables after the first one, and evidence below a conclusion, start closed.
if (matchMedia("(max-width: 40rem)").matches) document.querySelectorAll(".fold").forEach((fold) => (fold.open = false));

// A link to something inside of closed details opens them.
const reveal = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let details = target && target.closest("details"); details; details = details.parentElement.closest("details"))
    details.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
addEventListener("beforeprint", () => document.querySelectorAll("details:not(.runs)").forEach((details) => (details.open = true)));

// Embedded in another page (Snakemake's report), there are no files beside this one.
if (location.protocol === "data:") document.querySelectorAll("a[data-file]").forEach((link) => link.removeAttribute("href"));
