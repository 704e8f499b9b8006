// The accuracy of the selected model if the search had fewer draws: a chart for each data set.
function showSearch() {
  const sets = data.chapters[current].best_of_n;
  const readout = $("search-readout");
  const curves = sets.map((set) => set.curves.filter((curve) => wanted(curve.method)));
  const names = distinct(curves.flat().map((curve) => curve.method));
  $("search-legend").replaceChildren(...names.map((name) => entry(titleOf(name), methodColour(name), methodDash(name))));
  readout.textContent = "";
  if (!names.length) {
    $("search-charts").replaceChildren(make("p", { class: "empty" },
      sets.length ? noMatch() : "There is one draw, or this rule compares draws with each other."));
    return;
  }
  readout.textContent = "Point at a chart to see its values.";
  const boxes = sets.map(() => make("div"));
  $("search-charts").replaceChildren(...sets.map((set, index) => make("div", {}, make("h3", {}, set.dataset), boxes[index])));
  sets.forEach((set, index) => {
    const series = curves[index].map((curve) => ({
      name: titleOf(curve.method), steps: curve.values.map((_, n) => n + 1),
      values: curve.values.map((value) => (value === null ? null : (100 * value) / data.scale)),
      colour: methodColour(curve.method), dash: methodDash(curve.method),
    }));
    lineChart(boxes[index], `Accuracy on ${set.dataset} by the number of draws`, series, 240, {
      xName: "draws", tell: (n) => {
        readout.textContent = `${set.dataset}, best of ${counted(n, "draw")}: ` +
          series.map((one) => `${one.name} ${valueAt(one, n, (value) => value.toFixed(1))}`).join(" · ");
      },
    });
  });
}
