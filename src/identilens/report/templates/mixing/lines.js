"use strict";
// What the figures of a mixing report share: lines with a legend above, layers along the axis, shares in per cent.
const Lines = (() => {
  const marks = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
  const dashes = ["solid", "dash", "dot"];

  const percent = (value) => (value === null ? "undefined" : `${Page.number(100 * value, 3)} %`);

  // Rows given as columns, kept where the test holds.
  function select(columns, test) {
    const [first] = Object.values(columns);
    const kept = first.map((_, index) => index).filter((index) => test(index));
    return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, kept.map((index) => values[index])]));
  }

  const unique = (values) => [...new Set(values)];

  function layerAxis(layers, more = {}) {
    const step = Math.max(1, Math.ceil(layers.length / 16));
    return Page.axis("Layer", {
      tickvals: layers.filter((_, index) => index % step === 0), range: [layers[0] - 0.6, layers.at(-1) + 0.6], ...more,
    });
  }

  // One line for each {name, x, y, hover}, and dash where it should not be solid.
  function draw(element, lines, xaxis, yaxis, { markers = true, height = 380, colors = null } = {}) {
    const series = Page.theme().series;
    const traces = lines.map((line, place) => ({
      type: "scatter", mode: markers ? "lines+markers" : "lines", name: Page.escape(line.name), x: line.x, y: line.y,
      line: { color: (colors ?? series)[place % series.length], width: 2, dash: line.dash ?? (markers ? "solid" : dashes[place % dashes.length]) },
      marker: { symbol: marks[place % marks.length], size: 7 },
      text: line.hover, hovertemplate: "%{text}<extra></extra>", connectgaps: false,
    }));
    Page.draw(element, traces, {
      height, showlegend: lines.length > 1, hovermode: "closest", margin: { l: 66, r: 16, t: 12, b: 48 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemclick: "toggle" }, xaxis, yaxis,
    });
  }

  return { percent, select, unique, layerAxis, draw };
})();
