// Choosers: a row of selects, each of which narrows the runs for the next.
function choosers(box, parts, changed) {
  const selects = parts.map((part) => {
    const select = make("select", { "data-chooser": part.name });
    select.addEventListener("change", () => {
      // The preferred option depends on the selects before it.
      parts.forEach((other, index) => {
        if (other.follows && selects[index] !== select) selects[index].replaceChildren();
      });
      update();
    });
    box.append(make("label", {}, part.name, select));
    return select;
  });
  function update() {
    let places = data.runs.map((_, place) => place);
    const chosen = {};
    parts.forEach((part, index) => {
      const select = selects[index];
      const options = part.options(places, chosen);
      const wanted = options.find((option) => option.value === select.value) || options.find((option) => option.preferred) || options[0];
      select.replaceChildren(...options.map((option) => make("option", { value: option.value }, option.text)));
      select.disabled = !options.length;
      chosen[part.name] = wanted ? wanted.value : "";
      if (wanted) select.value = wanted.value;
      if (wanted && part.keep) places = places.filter((place) => part.keep(data.runs[place], wanted.value));
    });
    changed(places, chosen);
  }
  return { update, forget: (name) => selects[parts.findIndex((part) => part.name === name)].replaceChildren() };
}

const byField = (name, of, show = String, preferred = () => false) => ({
  name,
  options: (places) => distinct(places.map((place) => String(of(data.runs[place]))))
    .map((value) => ({ value, text: show(value), preferred: preferred(value) })),
  keep: (run, value) => String(of(run)) === value,
});
// Single test domains in the data set's order, then pairs.
function testDomains(places) {
  const runs = places.map((place) => data.runs[place]);
  const order = (run) => run.test.map((domain) => data.domains[run.dataset].indexOf(domain));
  runs.sort((a, b) => a.test.length - b.test.length || compared(order(a).join(), order(b).join(), false));
  return distinct(runs.map(domainsOf));
}
const inOrder = (part) => {
  const { options } = part;
  return { ...part, options: (...given) => options(...given).sort((a, b) => Number(a.value) - Number(b.value)) };
};

// Accuracy against a hyperparameter.
function varied(places) {
  const names = distinct(places.flatMap((place) => Object.keys(data.runs[place].hparams)));
  return names.filter((name) => distinct(places.map((place) => String(data.runs[place].hparams[name]))).length > 1);
}
const ALL = "all test domains";
const scatterChooser = choosers($("hparams-choosers"), [
  byField("Data set", (run) => run.dataset),
  byField("Method", (run) => run.method, titleOf),
  {
    name: "Test domain",
    options: (places) => [ALL, ...testDomains(places.filter((place) => single(data.runs[place])))]
      .map((value) => ({ value, text: value })),
    keep: (run, value) => single(run) && (value === ALL || domainsOf(run) === value),
  },
  { name: "Hyperparameter", options: (places) => varied(places).map((value) => ({ value, text: value })) },
], showScatter);

function showScatter(places, chosen) {
  const chapter = data.chapters[current];
  const name = chosen.Hyperparameter;
  const box = $("hparams-chart");
  const readout = $("hparams-readout");
  const points = places.filter((place) => chapter.readings[place] && chapter.readings[place][1] !== null && name in data.runs[place].hparams);
  const selected = new Set(chapter.chosen.map((one) => one.run));
  readout.textContent = "Point at a run to see its values.";
  $("hparams-legend").replaceChildren();
  if (!points.length) {
    box.replaceChildren(make("p", { class: "empty" }, "All hyperparameters of these runs are equal."));
    readout.textContent = "";
    return;
  }
  const values = points.map((place) => data.runs[place].hparams[name]);
  const plot = frame(box, `Accuracy of ${titleOf(chosen.Method)} on ${chosen["Data set"]} against ${name}`, name, 340);
  const numbers = values.every((value) => typeof value === "number");
  const count = Math.max(3, Math.floor(plot.width / 110));
  const x = numbers ? numericScale(values, spansDecades(values), plot.left, plot.right, count) : categories(values, plot.left, plot.right);
  const y = numericScale(points.map((place) => (100 * chapter.readings[place][1]) / data.scale), false, plot.bottom, plot.top, 7);
  axes(plot, x, y);
  plot.svg.append(draw("text", { class: "tick", x: 4, y: 12 }, "accuracy in %"));
  // Selected points are drawn last, over the others.
  points.sort((a, b) => selected.has(a) - selected.has(b));
  for (const place of points) {
    const run = data.runs[place];
    const [step, accuracy] = chapter.readings[place];
    const colour = colourOf(run.dataset, run.test[0]);
    const circle = draw("circle", {
      class: selected.has(place) ? "point selected" : "point", r: selected.has(place) ? 6 : 4.5, fill: colour, stroke: colour,
      cx: x.at(run.hparams[name]), cy: y.at((100 * accuracy) / data.scale),
    });
    circle.addEventListener("pointerenter", () => {
      readout.textContent = `${domainsOf(run)}, trial ${run.trial}, draw ${run.draw}: ${name} ${short(run.hparams[name])}, ` +
        `${percent(accuracy)} % at step ${step}${selected.has(place) ? ", selected" : ""}`;
    });
    plot.svg.append(circle);
  }
  $("hparams-legend").replaceChildren(...testDomains(points).map((domain) => entry(domain, colourOf(chosen["Data set"], domain), null, true)));
}

// Learning curves.
function selectedDraw(run) {
  const chapter = data.chapters[current];
  const found = chapter.chosen.find((one) => {
    const other = data.runs[one.run];
    return other.dataset === run.dataset && other.method === run.method && other.trial === run.trial && domainsOf(other) === domainsOf(run);
  });
  return found ? String(data.runs[found.run].draw) : null;
}
const curveChooser = choosers($("curves-choosers"), [
  byField("Data set", (run) => run.dataset),
  byField("Method", (run) => run.method, titleOf),
  {
    ...byField("Test domain", domainsOf),
    options: (places) => testDomains(places).map((value) => ({ value, text: value })),
  },
  inOrder(byField("Trial", (run) => run.trial)),
  inOrder({
    ...byField("Draw", (run) => run.draw),
    follows: true,
    options: (places) => {
      const best = places.length ? selectedDraw(data.runs[places[0]]) : null;
      return distinct(places.map((place) => String(data.runs[place].draw)))
        .map((value) => ({ value, text: value === best ? `${value} (selected)` : value, preferred: value === best }));
    },
  }),
], showCurves);

function showCurves(places) {
  const run = data.runs[places[0]];
  const readout = $("curves-readout");
  const steps = data.steps[run.steps];
  const series = Object.entries(run.accuracy).flatMap(([domain, splits]) => Object.entries(splits).map(([split, values]) => ({
    name: `${domain}, ${SPLITS[split] || split}${run.test.includes(domain) ? " (test)" : ""}`,
    steps,
    colour: colourOf(run.dataset, domain),
    dash: DASHES[split] || "",
    values: values.map((value) => (value === null ? null : (100 * value) / data.scale)),
  })));
  const reading = data.chapters[current].readings[places[0]];
  const read = reading ? reading[0] : null;
  $("curves-legend").replaceChildren(...series.map((one) => entry(one.name, one.colour, one.dash)));
  readout.textContent = "Accuracy in %. Point at the chart to see its values.";
  lineChart($("curves-chart"), `Accuracy of ${titleOf(run.method)} on ${run.dataset}, test domain ${domainsOf(run)}`, series, 340, {
    names: true, read, warmup: run.warmup,
    tell: (step) => {
      readout.textContent = `Step ${step}: ` + series.map((one) => `${one.name} ${valueAt(one, step, (value) => value.toFixed(1))}`).join(" · ");
    },
  });
  const terms = Object.entries(run.terms);
  // Added to the page before drawing, because their width is measured.
  const boxes = terms.map(() => make("div"));
  const cards = terms.map(([name], index) => make("div", {}, make("h3", {}, name), boxes[index]));
  $("terms").replaceChildren(...cards);
  terms.forEach(([name, values], index) => {
    const head = cards[index].firstChild;
    const one = { steps, values, colour: "var(--gray)", dash: "" };
    lineChart(boxes[index], `${name} of ${titleOf(run.method)}`, [one], 200, {
      read, warmup: run.warmup, logarithmic: true,
      tell: (step) => {
        head.textContent = `${name} at step ${step}: ${valueAt(one, step, short)}`;
      },
    });
  });
  const hparams = Object.entries(run.hparams).map(([name, value]) => make("li", {}, `${name} = ${short(value)}`));
  $("curves-hparams").replaceChildren(...hparams);
}
