"use strict";
// Own contribution by part of speech at one layer.
(() => {
  if (!Page.data.speech) return;
  const kind = document.getElementById("speech-kind"), layer = document.getElementById("speech-layer");
  const element = document.getElementById("speech-boxes");

  const render = Page.onDraw(() => {
    const all = Page.data.speech[kind.value], colors = Page.theme();
    const layers = Lines.unique(all.layer).sort((a, b) => a - b), fresh = !layer.options.length;
    Page.offer(layer, layers.map((value) => [value, value]));
    if (fresh) layer.value = String(layers.at(-1));
    const rows = Lines.select(all, (index) => String(all.layer[index]) === layer.value);
    const labels = rows.tag.map((tag, index) => `${Page.escape(Page.shorten(tag, 18))} (${rows.tokens[index].toLocaleString("en")})`);
    const places = rows.tag.map((_, index) => index);
    const trace = {
      type: "box", orientation: "h", y: places, q1: rows.q1, median: rows.median, q3: rows.q3, lowerfence: rows.low, upperfence: rows.high,
      fillcolor: colors.series[2] + "55", line: { color: colors.series[2], width: 1.5 }, whiskerwidth: 0.6, hoverinfo: "skip",
    };
    const points = {
      type: "scatter", mode: "markers", x: rows.median, y: places, marker: { opacity: 0, size: 14 },
      text: rows.tag.map((tag, index) => `${Page.escape(tag)}: median ${Lines.percent(rows.median[index])}<br>`
        + `half of ${Page.plural(rows.tokens[index], "token")} from ${Lines.percent(rows.q1[index])} to ${Lines.percent(rows.q3[index])}`),
      hovertemplate: "%{text}<extra></extra>",
    };
    // One scale for all layers, so that switching shows what changes.
    Page.draw(element, [trace, points], {
      height: 90 + 20 * rows.tag.length, margin: { l: 30 + 7 * Math.max(...labels.map((label) => label.length)), r: 16, t: 12, b: 48 }, hovermode: "closest",
      xaxis: Page.axis("Own contribution", { tickformat: ".0%", range: [0, 1.03 * Math.max(...all.high)] }),
      yaxis: Page.axis("", { tickmode: "array", tickvals: places, ticktext: labels, range: [rows.tag.length - 0.4, -0.6], showgrid: false }),
    });
  });
  kind.addEventListener("change", render);
  layer.addEventListener("change", render);
})();
