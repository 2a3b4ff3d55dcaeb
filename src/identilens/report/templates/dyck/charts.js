"use strict";
// Training losses, use of heads and balance: a colour for each setting.
(() => {
  const { curves, heads, violations } = Page.data;
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
  const settings = [...new Set(heads.map((one) => one.setting))];
  const color = (setting) => { const { series } = Page.theme(); return series[settings.indexOf(setting) % series.length]; };
  const symbol = (setting) => symbols[settings.indexOf(setting) % symbols.length];
  const legend = (element) => ({ orientation: "h", x: 0, xanchor: "left", y: -0.24, yanchor: "top", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)", entrywidth: element.clientWidth > 700 ? 0.49 : 0.98, entrywidthmode: "fraction" });
  const room = (element) => 60 + 21 * Math.ceil(settings.length / (element.clientWidth > 700 ? 2 : 1));

  function drawCurves() {
    const element = document.getElementById("dyck-curves"), seen = new Set();
    element.closest("section").querySelector("h3").hidden = element.hidden = !curves.length;
    if (!curves.length) return;
    const traces = curves.map((one) => {
      const first = !seen.has(one.setting);
      seen.add(one.setting);
      return {
        type: "scatter", mode: "lines", x: one.loss.map((_, index) => index + 1), y: one.loss, name: Page.escape(one.setting), legendgroup: one.setting, showlegend: first,
        line: { color: color(one.setting), width: 1.2 }, opacity: 0.7, hovertemplate: `${Page.escape(one.setting)}<br>seed ${one.seed}, epoch %{x}: %{y:.4g}<extra></extra>`,
      };
    });
    Page.draw(element, traces, {
      height: 330 + room(element), showlegend: true, legend: legend(element), hovermode: "closest", margin: { l: 66, r: 16, t: 12, b: room(element) },
      xaxis: Page.axis("Epoch"), yaxis: Page.axis("Cross-entropy", { type: "log", exponentformat: "power", dtick: 1 }),
    });
  }

  function points(element, rows, x, y, text) {
    return settings.map((setting) => {
      const own = rows.filter((row) => row.setting === setting);
      return {
        type: "scatter", mode: "markers", name: Page.escape(setting), x: own.map(x), y: own.map(y), text: own.map((row) => Page.escape(text(row))), hovertemplate: "%{text}<extra></extra>",
        marker: { color: color(setting), symbol: symbol(setting), size: 8, opacity: 0.8 },
      };
    }).filter((trace) => trace.x.length);
  }

  function drawUse() {
    const element = document.getElementById("dyck-use"), colors = Page.theme();
    const line = { type: "line", line: { color: colors.soft, width: 1.2, dash: "dot" } };
    const text = (row) => `${row.setting}, seed ${row.seed}, layer ${row.layer}, head ${row.head}: accuracy ${Page.fixed(100 * row.accuracy, 1)} %, removed ${Page.fixed(100 * row.removed, 1)}, even ${Page.fixed(100 * row.even, 1)}, random ${Page.fixed(100 * row.random, 1)}`;
    Page.draw(element, points(element, heads, (row) => row.stack_weight, (row) => 100 * row.largest_fall, text), {
      height: 340 + room(element), showlegend: true, legend: legend(element), hovermode: "closest", margin: { l: 66, r: 16, t: 12, b: room(element) },
      shapes: [{ ...line, xref: "x", x0: 0.5, x1: 0.5, yref: "paper", y0: 0, y1: 1 }, { ...line, xref: "paper", x0: 0, x1: 1, yref: "y", y0: 1, y1: 1 }],
      xaxis: Page.axis("Attention on the last unmatched bracket", { range: [-0.02, 1.02] }), yaxis: Page.axis("Largest fall of accuracy (points)"),
    });
  }

  function drawViolation(name) {
    const element = document.getElementById(`dyck-violation-${name}`);
    if (!element) return;
    const text = (row) => `${row.setting}, seed ${row.seed}: violation ${Page.number(row.violation)}, accuracy ${Page.fixed(100 * row[name], 1)} %`;
    Page.draw(element, points(element, violations, (row) => row.violation, (row) => row[name], text), {
      height: 330 + room(element), showlegend: true, legend: legend(element), hovermode: "closest", margin: { l: 66, r: 16, t: 12, b: room(element) },
      xaxis: Page.axis("Balance violation", { type: "log", exponentformat: "power" }), yaxis: Page.axis("Accuracy", { tickformat: ".0%" }),
    });
  }

  Page.onDraw(() => {
    drawCurves();
    drawUse();
    drawViolation("long_argmax");
    drawViolation("long_threshold");
  });
})();
