"use strict";
// Correlation of raw and effective attention against length, with a line at the size of a head's values.
(() => {
  const kind = document.getElementById("length-kind");
  const element = document.getElementById("length-plot");
  const note = document.getElementById("length-note");

  function hover(points, index) {
    const value = Page.number(points.pearson[index]), length = points.length[index];
    const pair = `${length} keys: correlation ${value}`;
    if (!points.grouped) return `text ${points.text[index]}, layer ${points.layer[index]}, head ${points.head[index]}<br>${pair}`;
    return `layer ${points.layer[index]}, mean of ${points.maps[index]} maps<br>${pair}`;
  }

  function caption(points, hidden) {
    const parts = [];
    if (!points.count) parts.push("No map has a correlation: all entries are equal in every map.");
    else if (points.grouped) {
      const span = points.width > 1 ? `${points.width} neighbouring lengths` : "one length";
      parts.push(`Each point is the mean over the maps of ${span} in one layer (${points.count.toLocaleString("en")} maps in all, too many to show one by one).`);
    } else parts.push(`Each point is one map (one text, layer and head); ${points.count.toLocaleString("en")} in all.`);
    if (points.undefined) parts.push(`${Page.plural(points.undefined, "map")} without a correlation ${points.undefined === 1 ? "is" : "are"} left out.`);
    if (hidden.length) parts.push(`dᵥ = ${hidden.join(", ")} lies far to the right: every map here has fewer keys than that.`);
    parts.push("Layers count from 0.");
    return parts.join(" ");
  }

  function line(d_v, colors) {
    return {
      shape: { type: "line", x0: d_v, x1: d_v, yref: "paper", y0: 0, y1: 1, line: { color: colors.ink, width: 1.5, dash: "dash" } },
      label: { x: d_v, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: `d<sub>v</sub> = ${d_v}`, font: { color: colors.ink, size: 13 } },
    };
  }

  const render = Page.onDraw(() => {
    const points = Page.data.correlation[kind.value], colors = Page.theme();
    const most = Math.max(1, ...points.length), low = Math.min(0, ...points.pearson);
    const near = points.d_v.filter((d_v) => !points.count || d_v <= 3 * most);
    const layers = [...new Set(points.layer)].sort((a, b) => a - b);
    const one = layers.length < 2;
    const marker = { size: points.length.length > 1500 ? 4 : 6, opacity: 0.7, color: one ? colors.series[0] : points.layer };
    if (!one) Object.assign(marker, {
      colorscale: colors.sequence, cmin: layers[0], cmax: layers.at(-1),
      colorbar: {
        title: { text: "Layer", side: "right" }, thickness: 12, outlinewidth: 0,
        ...(layers.length <= 12 ? { tickvals: layers } : { nticks: 8, tickformat: "d" }),
      },
    });
    const trace = {
      type: "scatter", mode: "markers", x: points.length, y: points.pearson, marker, cliponaxis: false,
      text: points.length.map((_, index) => hover(points, index)), hovertemplate: "%{text}<extra></extra>",
    };
    const lines = near.map((d_v) => line(d_v, colors));
    Page.draw(element, [trace], {
      height: 420, margin: { l: 62, r: 20, t: 34, b: 52 }, shapes: lines.map((of) => of.shape), annotations: lines.map((of) => of.label), hovermode: "closest",
      xaxis: Page.axis("Length (number of keys, tokens)", { range: [0, 1.04 * Math.max(most, ...near)], ...(Math.max(most, ...near) < 10 ? { dtick: 1 } : { nticks: 10 }) }),
      yaxis: Page.axis("Pearson correlation (raw, effective)", { range: [low < 0 ? 1.06 * low : -0.02, 1.03] }),
    });
    note.textContent = caption(points, points.d_v.filter((d_v) => !near.includes(d_v)));
  });
  kind.addEventListener("change", render);
})();
