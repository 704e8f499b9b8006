// Charts: one SVG unit is one pixel of the screen, so that text keeps its size.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push(k * step);
  return found;
}

function numericScale(values, logarithmic, from, to, count) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (logarithmic) {
    low = Math.log10(low);
    high = Math.log10(high);
  }
  const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  low -= room;
  high += room;
  const at = (value) => from + (((logarithmic ? Math.log10(value) : value) - low) / (high - low)) * (to - from);
  let marks = ticks(low, high, count);
  if (logarithmic) {
    const stride = Math.max(1, Math.ceil((high - low) / count));
    const between = high - low < count / 2 ? [1, 3] : [1];
    marks = [];
    for (let k = Math.floor(low); k <= high; k += stride) marks.push(...between.map((part) => part * 10 ** k));
    marks = marks.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
  }
  return { at, marks: marks.map((value) => [at(value), short(value)]) };
}

const spansDecades = (values) => values.every((value) => value > 0) && Math.max(...values) / Math.min(...values) >= 50;

function categories(values, from, to) {
  const names = distinct(values.map(String)).sort();
  const at = (value) => from + ((names.indexOf(String(value)) + 0.5) / names.length) * (to - from);
  return { at, marks: names.map((name) => [at(name), name]) };
}

function frame(box, label, xName, height, top = 22) {
  const width = Math.max(240, box.clientWidth - 13);
  const plot = { width, height, left: 46, right: width - 18, top, bottom: height - 42 };
  plot.svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  plot.svg.append(draw("text", { class: "tick", x: (plot.left + plot.right) / 2, y: height - 6, "text-anchor": "middle" }, xName));
  box.replaceChildren(plot.svg);
  return plot;
}

function axes(plot, x, y) {
  for (const [at, name] of y.marks) {
    plot.svg.append(draw("line", { class: "grid", x1: plot.left, x2: plot.right, y1: at, y2: at }),
      draw("text", { class: "tick", x: plot.left - 6, y: at + 4, "text-anchor": "end" }, name));
  }
  for (const [at, name] of x.marks) {
    plot.svg.append(draw("text", { class: "tick", x: at, y: plot.bottom + 17, "text-anchor": "middle" }, name));
  }
}

function sample(colour, dash, selected) {
  if (dash === null) {
    return draw("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" },
      draw("circle", { class: selected ? "point selected" : "point", cx: 15, cy: 6, r: 4.5, fill: colour, stroke: colour }));
  }
  return draw("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" },
    draw("line", { x1: 0, x2: 30, y1: 6, y2: 6, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dash || null }));
}
const entry = (name, ...look) => make("span", {}, sample(...look), name);

function path(steps, values, x, y) {
  let open = false;
  return steps.map((step, index) => {
    if (values[index] === null) {
      open = false;
      return "";
    }
    const command = open ? "L" : "M";
    open = true;
    // A single point is drawn as a stroke of no length with round ends.
    const alone = command === "M" && (index + 1 === steps.length || values[index + 1] === null) ? "h0.01" : "";
    return `${command}${x.at(step).toFixed(1)} ${y.at(values[index]).toFixed(1)}${alone}`;
  }).join("");
}

function upright(plot, at, kind, name, line) {
  const end = at > (plot.left + plot.right) / 2;
  plot.svg.append(draw("line", { class: `at ${kind}`, x1: at, x2: at, y1: name ? 3 + 15 * line : plot.top, y2: plot.bottom }));
  if (name) plot.svg.append(draw("text", { class: "mark", x: at + (end ? -5 : 5), y: 13 + 15 * line, "text-anchor": end ? "end" : "start" }, name));
}

function hovered(plot, steps, x, tell) {
  const line = draw("line", { class: "at here", y1: plot.top, y2: plot.bottom, visibility: "hidden" });
  plot.svg.append(line);
  const find = (event) => {
    const at = event.clientX - plot.svg.getBoundingClientRect().left;
    let best = 0;
    steps.forEach((step, index) => {
      if (Math.abs(x.at(step) - at) < Math.abs(x.at(steps[best]) - at)) best = index;
    });
    fill(line, { x1: x.at(steps[best]), x2: x.at(steps[best]), visibility: "visible" }, []);
    tell(best);
  };
  plot.svg.addEventListener("pointermove", find);
  plot.svg.addEventListener("pointerdown", find);
}

// A series is {steps, values, colour, dash, ring}: ring is the step to mark, if any.
function lineChart(box, label, series, height, options) {
  const steps = distinct(series.flatMap((one) => one.steps)).sort((a, b) => a - b);
  const values = series.flatMap((one) => one.values).filter((value) => value !== null);
  if (!values.length) {
    box.replaceChildren(make("p", { class: "empty" }, options.empty || "No numbers were recorded."));
    return;
  }
  const plot = frame(box, label, options.xName || "step", height, options.names ? 40 : 10);
  const x = numericScale(steps, false, plot.left, plot.right, Math.max(2, Math.floor(plot.width / 110)));
  x.marks = x.marks.filter(([, name]) => Number(name) >= 0);
  const y = numericScale(values, options.logarithmic && spansDecades(values), plot.bottom, plot.top, height / 50);
  axes(plot, x, y);
  for (const one of series) {
    plot.svg.append(draw("path", { class: "curve", d: path(one.steps, one.values, x, y), stroke: one.colour,
      "stroke-dasharray": one.dash || null, "stroke-linecap": one.dash ? null : "round" }));
    const at = one.steps.findIndex((step) => step >= one.ring);
    if (one.ring > 0 && at >= 0 && one.values[at] !== null) {
      plot.svg.append(draw("circle", { class: "ring", r: 4.5, stroke: one.colour, cx: x.at(one.steps[at]), cy: y.at(one.values[at]) }));
    }
  }
  const last = steps[steps.length - 1];
  if (options.warmup > 0 && options.warmup <= last) upright(plot, x.at(options.warmup), "dashed", options.names && "warm-up ends", 0);
  if (typeof options.read === "number") upright(plot, x.at(options.read), "", options.names && "read here", 1);
  hovered(plot, steps, x, (index) => options.tell(steps[index]));
}

function valueAt(one, step, show) {
  const value = one.values[one.steps.indexOf(step)];
  return value === null || value === undefined ? MISSING : show(value);
}
