// Sections with tables, and the page as a whole.
function showCosts() {
  if (!data.costs.length) {
    $("cost-table").replaceChildren(make("p", { class: "empty" }, "No run has recorded its time."));
    return;
  }
  const columns = ["Method", "Data set"].map((name) => ({ name, words: true })).concat(
    ["Runs", "Time per run", "Training", "Evaluation", "Time per update", "All runs"].map((name) => ({ name })));
  const rows = data.costs.map((cost) => {
    const update = cost.updates ? (1000 * cost.updating * cost.runs) / cost.updates : null;
    return {
      method: cost.method,
      baseline: cost.method === data.baseline,
      cells: [
        text(titleOf(cost.method)), text(cost.dataset), number(cost.runs, String(cost.runs)),
        number(cost.seconds, duration(cost.seconds)), number(cost.updating, duration(cost.updating)),
        number(cost.evaluating, duration(cost.evaluating)),
        number(update, update === null ? "" : `${update.toFixed(update < 10 ? 2 : 1)} ms`),
        number(cost.total, duration(cost.total)),
      ],
    };
  });
  table($("cost-table"), "cost", columns, rows);
  const all = data.costs.reduce((sum, cost) => sum + cost.total, 0);
  const machines = distinct(data.costs.flatMap((cost) => cost.machines));
  $("machines").textContent = `Total: ${duration(all)} of one worker.` +
    (machines.length ? ` Machines: ${machines.join("; ")}.` : "");
}

function showFailures() {
  if (!data.failures.length) {
    $("failures-table").replaceChildren(make("p", { class: "empty" }, "No run failed."));
    return;
  }
  $("failures-advice").hidden = false;
  const words = (name) => ({ name, words: true });
  const columns = [words("Method"), words("Reason"), words("Data set"), words("Test domain"), { name: "Trial", smallFirst: true },
    { name: "Draw", smallFirst: true }, words("Folder")];
  table($("failures-table"), "failures", columns, data.failures.map((one) => ({
    method: one.method,
    cells: [text(titleOf(one.method)), text(one.reason, true), text(one.dataset), text(domainsOf(one)),
      number(one.trial, String(one.trial)), number(one.draw, String(one.draw)), text(one.folder, true)],
  })));
}

function showSelection() {
  const chapter = data.chapters[current];
  $("selection-title").textContent = `Models selected by ${chapter.rule}`;
  const words = (name) => ({ name, words: true });
  const small = (name) => ({ name, smallFirst: true });
  const columns = [words("Method"), words("Data set"), words("Test domain"), small("Trial"), small("Draw"), small("Step"),
    small("Record"), { name: "Score" }, { name: "Training domains" }, { name: "Accuracy" }];
  table($("selection-table"), "selection", columns, chapter.chosen.map((chosen) => {
    const run = data.runs[chosen.run];
    const [step, accuracy] = chapter.readings[chosen.run];
    return {
      method: run.method,
      baseline: false,
      cells: [text(titleOf(run.method)), text(run.dataset), text(domainsOf(run)), number(run.trial, String(run.trial)),
        number(run.draw, `${run.draw} (of ${chosen.draws})`), number(step, step.toLocaleString("en")),
        number(chosen.record, `${chosen.record} of ${chosen.records}`),
        number(chosen.score, chosen.score === null ? "" : (100 * chosen.score).toFixed(1)),
        number(chosen.inside, percent(chosen.inside)), number(accuracy, percent(accuracy))],
    };
  }));
}

// The accuracies of all methods minus those of the chosen one.
function showPaired() {
  const { paired } = data.chapters[current];
  const names = Object.keys(paired);
  const select = $("paired-other");
  const wanted = [select.value, data.baseline, names[0]].find((name) => names.includes(name));
  select.replaceChildren(...names.map((name) => make("option", { value: name }, titleOf(name))));
  select.value = wanted;
  if (names.length > 1) gridTable($("paired-table"), "paired", paired[wanted], { name: "Difference", descending: true });
  else $("paired-table").replaceChildren(make("p", { class: "empty" }, "There is no other method to compare."));
}

// Everything that depends on the rule.
function showRule() {
  const chapter = data.chapters[current];
  [...$("rules").children].forEach((button, index) => button.setAttribute("aria-pressed", String(index === current)));
  $("words").textContent = chapter.words;
  $("cautions").replaceChildren(...chapter.cautions.map((line) => make("p", {}, `${line}.`)));
  $("about").replaceChildren(...chapter.about.map((line) => make("p", { class: "soft note" }, `${line}.`)));
  gridTable($("leaderboard-table"), "leaderboard", chapter.leaderboard, { name: "Avg", descending: true });
  gridTables($("published"), "published", chapter.published);
  gridTables($("domains-tables"), "domains", chapter.by_domain);
  showPaired();
  showSearch();
  showSelection();
  curveChooser.forget("Draw");
  scatterChooser.update();
  curveChooser.update();
  gapChooser.update();
}

function showSamples() {
  const sets = Object.entries(data.samples);
  if (!sets.length) {
    $("samples-rows").replaceChildren(make("p", { class: "empty" }, "The images were not found when this page was written. Give their folder with shoal report --data."));
    return;
  }
  $("samples-rows").replaceChildren(...sets.flatMap(([dataset, domains]) => [
    make("h3", {}, dataset),
    ...Object.entries(domains).map(([domain, images]) => make("div", { class: "domain" },
      make("div", { class: "name" }, domain),
      make("div", { class: "images" }, ...images.map(([name, address]) => make("figure", {},
        make("img", { src: address, alt: name ? `${name}, ${domain}` : domain, title: name || null }),
        name ? make("figcaption", {}, name) : null))))),
  ]));
}

function start() {
  const methods = distinct(data.runs.map((run) => run.method)).filter((method) => !data.averages.includes(method));
  const datasets = distinct(data.runs.map((run) => run.dataset));
  const averages = data.averages.length ? " with averages of their weights" : "";
  $("summary").textContent = [counted(methods.length, "method") + averages, counted(datasets.length, "data set"),
    counted(distinct(data.runs.map((run) => run.trial)).length, "trial"),
    `up to ${counted(distinct(data.runs.map((run) => run.draw)).length, "draw")} of hyperparameters`,
    counted(data.failures.length, "failure")].join(", ") + ".";
  data.chapters.forEach((chapter, index) => {
    const button = make("button", { type: "button" }, chapter.rule);
    button.addEventListener("click", () => {
      current = index;
      showRule();
    });
    $("rules").append(button);
    $("all-words").append(make("dt", {}, chapter.rule), make("dd", {}, chapter.words));
  });
  $("paired-other").addEventListener("change", showPaired);
  $("further").textContent = `${data.further}.`;
  $("differences").textContent = `${data.differences}.`;
  $("search-words").textContent = `${data.searched}.`;
  $("filter").addEventListener("input", () => {
    filter();
    gapChooser.update();
    showSearch();
  });
  NARROW.addEventListener("change", showRule);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    scatterChooser.update();
    curveChooser.update();
    gapChooser.update();
    showSearch();
  });
  showCosts();
  showFailures();
  showSamples();
  showRule();
}
start();
