"use strict";
// Rates by layer or share: one chart a figure, its lines as the Python side made them.
(() => {
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];

  // A colour between the stops of a scale.
  function shade(scale, place) {
    const above = Math.max(1, scale.findIndex(([stop]) => stop >= place));
    const [[from, first], [to, second]] = [scale[above - 1], scale[above]];
    const share = (place - from) / (to - from);
    const part = (color, index) => parseInt(color.slice(1 + 2 * index, 3 + 2 * index), 16);
    const mixed = [0, 1, 2].map((index) => Math.round(part(first, index) * (1 - share) + part(second, index) * share));
    return `rgb(${mixed.join(",")})`;
  }

  function trace(curve, chart, colors) {
    const color = curve.shade === null ? colors.series[curve.tone % colors.series.length] : shade(colors.sequence, curve.shade);
    const known = curve.errors.every((error) => error !== null);
    const label = Page.escape(curve.label), unit = chart.group === "shares" ? " %" : "";
    const where = chart.group === "shares" ? "training sentences" : "layer";
    return {
      type: "scatter", mode: "lines+markers", name: label, x: curve.x, y: curve.y, cliponaxis: false,
      line: { color, width: 2, dash: curve.dashed ? "dash" : "solid" },
      marker: { color, size: 7, symbol: symbols[curve.mark % symbols.length] },
      error_y: { type: "data", array: known ? curve.errors : [], visible: known, color, thickness: 1.2, width: 3 },
      text: curve.y.map((value, index) => `${(100 * value).toFixed(1)} %${known ? ` ± ${(100 * curve.errors[index]).toFixed(1)}` : ""}`),
      hovertemplate: `${label}<br>${where} %{x}${unit}: %{text}<extra></extra>`,
    };
  }

  function draw(chart) {
    const colors = Page.theme(), element = document.getElementById(chart.name);
    const stretch = element.closest("section").querySelector("input[type=checkbox]").checked;
    const values = chart.curves.flatMap((curve) => curve.y), places = [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const room = 0.06 * (Math.max(...values) - Math.min(...values)) || 0.01;
    const range = stretch ? [Math.min(...values) - room, Math.max(...values) + room] : [0, 1.03];
    const shown = chart.chance !== null && chart.chance >= range[0];
    // Room to the sides, so that the outermost points and bars are whole.
    const side = places.length > 1 ? 0.04 * (places.at(-1) - places[0]) : 0.5;
    const rows = Math.ceil(chart.curves.length / (element.clientWidth > 520 ? 2 : 1));
    Page.draw(element, chart.curves.map((curve) => trace(curve, chart, colors)), {
      height: 360 + 21 * rows, hovermode: "closest", showlegend: true,
      legend: { orientation: "h", x: 0, xanchor: "left", y: -58 / 300, yanchor: "top", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)", entrywidth: element.clientWidth > 520 ? 0.49 : 0.98, entrywidthmode: "fraction" },
      margin: { l: 62, r: 20, t: 14, b: 60 + 21 * rows },
      shapes: shown ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: chart.chance, y1: chart.chance, line: { color: colors.soft, width: 1.5, dash: "dot" } }] : [],
      xaxis: Page.axis(chart.x_label, { tickvals: places.filter((_, index) => index % Math.ceil(places.length / 14) === 0), range: [places[0] - side, places.at(-1) + side] }),
      yaxis: Page.axis("Share recovered", { range, tickformat: stretch && range[1] - range[0] < 0.05 ? ".1%" : ".0%" }),
    });
  }

  const render = Page.onDraw(() => Page.data.charts.forEach(draw));
  document.querySelectorAll("section input[type=checkbox]").forEach((box) => box.addEventListener("change", render));
})();
