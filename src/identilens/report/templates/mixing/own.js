"use strict";
// Own contribution as boxes by layer, and the share of tokens that are not their own largest contributor.
(() => {
  const kind = document.getElementById("own-kind");
  const boxes = document.getElementById("own-boxes"), largest = document.getElementById("own-largest");

  function drawBoxes(rows) {
    const colors = Page.theme(), few = rows.layer.length <= 12;
    const trace = {
      type: "box", x: rows.layer, q1: rows.q1, median: rows.median, q3: rows.q3, lowerfence: rows.low, upperfence: rows.high,
      fillcolor: colors.series[0] + "55", line: { color: colors.series[0], width: 1.5 }, whiskerwidth: 0.6, hoverinfo: "skip",
    };
    const hover = rows.layer.map((layer, index) => `layer ${layer}: median ${Lines.percent(rows.median[index])}<br>`
      + `half of the tokens from ${Lines.percent(rows.q1[index])} to ${Lines.percent(rows.q3[index])}<br>${Page.plural(rows.tokens[index], "token")}`);
    const label = {
      type: "scatter", mode: few ? "text+markers" : "markers", x: rows.layer, y: rows.high, cliponaxis: false,
      text: rows.median.map((value) => `${(100 * value).toFixed(0)} %`), textposition: "top center",
      marker: { opacity: 0, size: 14 }, hovertext: hover, hovertemplate: "%{hovertext}<extra></extra>",
    };
    Page.draw(boxes, [trace, label], {
      height: 400, margin: { l: 66, r: 16, t: 24, b: 48 }, hovermode: "x",
      xaxis: Lines.layerAxis(rows.layer),
      yaxis: Page.axis("Own contribution", { tickformat: ".0%", rangemode: "tozero" }),
    });
  }

  function drawLargest(rows) {
    const colors = Page.theme(), most = Math.max(0.05, ...rows.not_largest), few = rows.layer.length <= 12;
    const trace = {
      type: "bar", x: rows.layer, y: rows.not_largest, marker: { color: colors.series[1] }, cliponaxis: false,
      text: few ? rows.not_largest.map((value) => `${Page.fixed(100 * value, 1)} %`) : null, textposition: "outside",
      hovertext: rows.layer.map((layer, index) => `layer ${layer}: ${Lines.percent(rows.not_largest[index])} of ${Page.plural(rows.tokens[index], "token")}`),
      hovertemplate: "%{hovertext}<extra></extra>",
    };
    Page.draw(largest, [trace], {
      height: 400, margin: { l: 66, r: 16, t: 24, b: 48 },
      xaxis: Lines.layerAxis(rows.layer),
      yaxis: Page.axis("Share of tokens", { tickformat: most < 0.1 ? ".1%" : ".0%", range: [0, 1.1 * most] }),
    });
  }

  const render = Page.onDraw(() => {
    const rows = Page.data.own[kind.value];
    drawBoxes(rows);
    drawLargest(rows);
  });
  kind.addEventListener("change", render);
})();
