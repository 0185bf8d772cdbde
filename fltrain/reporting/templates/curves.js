const numbers = document.getElementById("numbers").textContent.replaceAll("\\u003c", "<");
const spec = JSON.parse(document.getElementById("spec").textContent);
spec.data.values = numbers;
document.getElementById("csv").href = URL.createObjectURL(new Blob([numbers], { type: "text/csv" }));
// The address can choose: ?panel=...&metric=...
const wanted = new URLSearchParams(location.search);
for (const param of spec.params) if (wanted.has(param.name)) param.value = wanted.get(param.name);
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
vegaEmbed("#chart", spec, {
  renderer: "svg",
  theme: dark ? "dark" : undefined,
  config: { background: getComputedStyle(document.documentElement).getPropertyValue("--page") },
  actions: { export: true, source: false, compiled: false, editor: false },
  downloadFileName: document.getElementById("csv").download.replace(/\.csv$/, ""),
}).then(() => {
  document.querySelector("#chart summary").setAttribute("aria-label", "Save the chart");
  // Vega-Embed makes the picture when the mouse goes down; do the same for the keyboard.
  for (const link of document.querySelectorAll("#chart .vega-actions a"))
    link.addEventListener("focus", () => link.dispatchEvent(new MouseEvent("mousedown")));
});
