// Gaps between training domains over training: a curve for each method's selected run.
const METHODS = distinct(data.runs.map((run) => run.method));
const METHOD_DASHES = ["", "7 4", "2 4", "10 3 2 3"];
const methodColour = (method) => COLOURS[METHODS.indexOf(method) % COLOURS.length];
const methodDash = (method) => METHOD_DASHES[Math.floor(METHODS.indexOf(method) / COLOURS.length) % METHOD_DASHES.length];
const RECORDED = (name) => (run) => run.gaps[name] || null;
const GAPS = [
  { name: "accuracy, best minus worst, in points", of: accuracyGap, always: true, linear: true },
  { name: "risk, spread", of: RECORDED("risk"), always: true },
  { name: "gradient variance, spread", of: RECORDED("variance"), always: true },
  { name: "Hessian diagonal, spread", of: RECORDED("hessian"), always: false },
];

// On held-out images, which every run measures; null for fewer than two domains.
function accuracyGap(run) {
  const found = Object.entries(run.accuracy).filter(([domain, splits]) => !run.test.includes(domain) && splits.held_out);
  if (found.length < 2) return null;
  return data.steps[run.steps].map((_, index) => {
    const values = found.map(([, splits]) => splits.held_out[index]);
    return values.includes(null) ? null : (100 * (Math.max(...values) - Math.min(...values))) / data.scale;
  });
}

// Not every record has a gap; the curve joins those that do.
function measured(run, values) {
  const at = values.map((_, index) => index).filter((index) => values[index] !== null);
  return { steps: at.map((index) => data.steps[run.steps][index]), values: at.map((index) => values[index]) };
}

const gapChooser = choosers($("gaps-choosers"), [
  byField("Data set", (run) => run.dataset),
  {
    ...byField("Test domain", domainsOf),
    options: (places) => testDomains(places.filter((place) => single(data.runs[place]))).map((value) => ({ value, text: value })),
  },
  inOrder(byField("Trial", (run) => run.trial)),
], showGaps);

function showGaps(places) {
  const selected = new Set(data.chapters[current].chosen.map((one) => one.run));
  const runs = places.filter((place) => selected.has(place) && wanted(data.runs[place].method)).map((place) => data.runs[place]);
  const names = runs.map((run) => run.method);
  const readout = $("gaps-readout");
  $("gaps-legend").replaceChildren(...names.map((name) => entry(titleOf(name), methodColour(name), methodDash(name))));
  if (!runs.length) {
    const some = places.some((place) => wanted(data.runs[place].method));
    $("gaps-charts").replaceChildren(make("p", { class: "empty" }, some ? "The rule selected none of these runs." : noMatch()));
    readout.textContent = "";
    return;
  }
  readout.textContent = "Point at a chart to see its values.";
  const shown = GAPS.filter((gap) => gap.always || runs.some(gap.of));
  // Added to the page before drawing, because their width is measured.
  const boxes = shown.map(() => make("div"));
  $("gaps-charts").replaceChildren(...shown.map((gap, index) => make("div", {}, make("h3", {}, gap.name), boxes[index])));
  shown.forEach((gap, index) => {
    const series = runs.filter(gap.of).map((run) => ({
      name: titleOf(run.method), ...measured(run, gap.of(run)), ring: run.warmup,
      colour: methodColour(run.method), dash: methodDash(run.method),
    }));
    lineChart(boxes[index], `${gap.name} between training domains`, series, 220, {
      logarithmic: !gap.linear, empty: "Not recorded by these runs.",
      tell: (step) => {
        readout.textContent = `${gap.name} at step ${step}: ` + series.map((one) => `${one.name} ${valueAt(one, step, short)}`).join(" · ");
      },
    });
  });
}
