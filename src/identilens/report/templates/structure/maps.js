"use strict";
// W of every head as a small map, computed here for the threshold on the slider; the chosen one large.
(() => {
  const { maps, heads, length: n, penalty, special } = Page.data;
  const parts = ["raw", "effective", "all_raw", "all_effective"];
  const control = (name) => document.getElementById(`maps-${name}`);
  const slider = control("threshold"), steps = Number(slider.max);
  const held = maps.map((one) => Maps.decode(one, parts));
  let chosen = 0, buttons = [];

  // Steps lie close together where weights are small: l runs with the square of the slider.
  const atStep = (step) => (step / steps) ** 2;
  const toStep = (threshold) => Math.round(steps * Math.sqrt(threshold));
  // The run's own threshold is kept exactly until the slider moves.
  let threshold = Page.data.threshold;

  const part = () => control("over").value + control("weights").value;

  // W = Norm(Cut_l(mean)), row by row.
  function cutRows(matrix, level) {
    return matrix.map((row) => {
      const cut = row.map((value) => (value >= level ? value : penalty * value));
      const sum = cut.reduce((total, value) => total + value, 0);
      return sum > 0 ? cut.map((value) => value / sum) : cut;
    });
  }

  function paint(canvas, rows) {
    const context = canvas.getContext("2d"), image = context.createImageData(n, n);
    const ink = Page.theme().dark ? [255, 155, 102] : [11, 60, 125], paper = Page.theme().dark ? [30, 36, 42] : [244, 246, 248];
    rows.forEach((row, query) => row.forEach((value, key) => {
      const at = 4 * (query * n + key), share = Math.min(1, Math.sqrt(value));
      for (let channel = 0; channel < 3; channel += 1) image.data[at + channel] = paper[channel] + share * (ink[channel] - paper[channel]);
      image.data[at + 3] = 255;
    }));
    context.putImageData(image, 0, 0);
  }

  function build() {
    const grid = control("grid");
    let box = null, last = "";
    buttons = maps.map((one, index) => {
      const layer = `${one.kind} layer ${one.layer}`;
      if (layer !== last) {
        const title = document.createElement("h3");
        title.textContent = layer[0].toUpperCase() + layer.slice(1);
        box = document.createElement("div");
        box.className = "heads";
        grid.append(title, box);
        last = layer;
      }
      const button = document.createElement("button"), canvas = document.createElement("canvas"), label = document.createElement("span");
      button.type = "button";
      canvas.width = canvas.height = n;
      label.textContent = `head ${one.head}`;
      button.append(canvas, label);
      button.setAttribute("aria-label", `${layer}, head ${one.head}`);
      button.addEventListener("click", () => { chosen = index; drawChosen(); });
      box.append(button);
      return button;
    });
  }

  function drawAll() {
    let kept = 0, empty = 0;
    maps.forEach((one, index) => {
      const matrix = held[index][part()];
      paint(buttons[index].querySelector("canvas"), cutRows(matrix, threshold));
      for (const row of matrix) {
        const left = row.reduce((count, value) => count + (value >= threshold), 0);
        kept += left;
        empty += left === 0;
      }
    });
    control("value").textContent = `l = ${Page.number(threshold, 4)} (${Page.number(threshold * n, 2)} times uniform)`;
    control("summary").textContent = maps.length
      ? `At l = ${Page.number(threshold, 4)}, ${Page.number((100 * kept) / (maps.length * n * n), 2)} % of all entries are kept and ${Page.number((100 * empty) / (maps.length * n), 2)} % of all rows are empty.`
      : "";
    drawChosen();
  }

  function drawChosen() {
    if (!maps.length) return;
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === chosen)));
    const one = maps[chosen], matrix = held[chosen][part()], rows = cutRows(matrix, threshold), colors = Page.theme();
    control("name").textContent = `${one.kind[0].toUpperCase() + one.kind.slice(1)} layer ${one.layer}, head ${one.head}`;
    const top = Math.max(1e-6, ...rows.map((row) => Math.max(...row)));
    const element = control("plot"), side = Math.max(200, Math.min(560, element.clientWidth - 90));
    Page.draw(element, [{
      type: "heatmap", z: rows, zmin: -top, zmax: top, colorscale: colors.diverging, showscale: false,
      hovertemplate: "query %{y} → key %{x}: %{z:.3f}<extra></extra>",
    }], {
      height: side + 80, margin: { l: 58, r: Math.max(10, element.clientWidth - side - 58), t: 44, b: 30 },
      xaxis: Page.axis("Key position", { side: "top", showgrid: false }),
      yaxis: Page.axis("Query position", { autorange: "reversed", showgrid: false }),
    });
    const most = Math.max(1e-6, ...matrix.map((row) => Math.max(...row)));
    const levels = Array.from({ length: 61 }, (_, step) => most * (step / 60) ** 2);
    const counts = levels.map((level) => {
      const kept = matrix.map((row) => row.reduce((count, value) => count + (value >= level), 0));
      return [kept.reduce((total, value) => total + value, 0) / (n * n), kept.filter((value) => !value).length / n];
    });
    const line = (name, column) => ({ name, x: levels, y: counts.map((pair) => pair[column]), hover: counts.map((pair, index) => `l = ${Page.number(levels[index])}: ${Lines.percent(pair[column])}`) });
    Lines.draw(control("kept"), [line("entries kept", 0), line("rows emptied", 1)],
      Page.axis("Threshold l", { rangemode: "tozero" }), Page.axis("Share", { tickformat: ".0%", range: [0, 1.02] }), { markers: false, height: side + 40 });
    const at = heads.head.findIndex((head, index) => head === one.head && heads.layer[index] === one.layer && heads.kind[index] === one.kind);
    const placed = (pattern, score, place) => (pattern === "empty" ? "empty in most rows" : pattern === "mixed" ? `no simple pattern (best score ${Page.fixed(score, 2)})`
      : `${pattern}${pattern === "vertical" ? ` at key ${place}${special.includes(place) ? ", a special token" : ""}` : ["offset", "block"].includes(pattern) ? ` at ${String(place).replace("-", "−")}` : ""}, score ${Page.fixed(score, 2)}`);
    control("facts").textContent = `At the run's own l = ${Page.number(Page.data.threshold, 4)}: raw ${placed(heads.pattern[at], heads.score[at], heads.place[at])}; `
      + `effective ${placed(heads.effective_pattern[at], heads.effective_score[at], heads.effective_place[at])}. dim R = ${heads.dim_r[at]} of ${n}.`;
  }

  slider.value = toStep(threshold);
  build();
  slider.addEventListener("input", () => { threshold = atStep(Number(slider.value)); drawAll(); });
  for (const name of ["weights", "over"]) control(name).addEventListener("change", drawAll);
  Page.onDraw(drawAll);
})();
