"use strict";
// Null spaces of two texts, negative entries, and the stability of W.
(() => {
  const { pairs, texts, stability, clusters } = Page.data;

  // One point for each head, layers side by side.
  function byHead(id, rows, column, say, more = []) {
    const colors = Page.theme(), x = rows.head.map((_, index) => index);
    const starts = x.filter((index) => index === 0 || rows.layer[index] !== rows.layer[index - 1] || rows.kind[index] !== rows.kind[index - 1]);
    Page.draw(document.getElementById(id), [{
      type: "bar", x, y: rows[column], marker: { color: rows.layer.map((layer) => colors.series[layer % 2]) },
      text: x.map((index) => `${rows.kind[index]} layer ${rows.layer[index]}, head ${rows.head[index]}: ${say(index)}`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
    }, ...more.map((name) => ({ type: "scatter", mode: "lines", x, y: rows[name], line: { color: colors.ink, width: 1.5, dash: "dot" }, hoverinfo: "skip" }))], {
      height: 330, bargap: 0.15, xaxis: Page.axis("Heads, by layer", { tickvals: starts, ticktext: starts.map((index) => `${rows.layer[index]}`), tickangle: 0, showgrid: false }),
      yaxis: Page.axis("Share", { tickformat: ".0%", rangemode: "tozero" }),
    });
  }

  const mean = (values) => values.reduce((total, value) => total + value, 0) / Math.max(1, values.length);

  Page.onDraw(() => {
    if (pairs.head.length) byHead("classes-overlap", pairs, "overlap", (index) => `${Lines.percent(pairs.overlap[index])} shared, ${Lines.percent(pairs.chance[index])} by chance`, ["chance"]);
    const known = Lines.select(texts, (index) => texts.negative[index] !== null);
    if (known.head.length) byHead("classes-negative", known, "negative", (index) => `${Lines.percent(known.negative[index])} of entries, least ${Page.number(known.least[index])}`);
    document.getElementById("classes-facts").textContent = pairs.head.length
      ? `Over ${Page.plural(mean(pairs.pairs), "pair")} of texts: where weights can be moved at all, they are equivalent under the first and not under the second in ${Lines.percent(mean(pairs.disagree.filter((one) => one !== null)))} of the cases; the second text's output moves by ${Lines.percent(mean(pairs.change_second))} on average.`
      : "In no head and text is there a null space here: two sets of weights are equivalent only when they are equal.";
    const kinds = Lines.unique(stability.kind);
    const lines = kinds.flatMap((kind) => {
      const rows = Lines.select(stability, (index) => stability.kind[index] === kind), end = kinds.length > 1 ? ` (${kind})` : "";
      return [["to_all", "W to that of all texts"], ["to_next", "W to the next"], ["mean_to_all", "before the cut"], ["random_to_all", "as many random texts, before the cut"]].map(([column, name]) => ({
        name: name + end, x: rows.clusters, y: rows[column], hover: rows.clusters.map((count, index) => `${Page.plural(count, "cluster")}: ${Page.number(rows[column][index])}`),
      }));
    });
    Lines.draw(document.getElementById("stability-plot"), lines, Page.axis("Clusters", { type: "log", tickvals: Lines.unique(stability.clusters) }), Page.axis("Relative distance", { rangemode: "tozero" }));
    const scored = Lines.select(clusters, (index) => clusters.silhouette[index] !== null);
    Lines.draw(document.getElementById("stability-silhouette"), [{ name: "silhouette", x: scored.clusters, y: scored.silhouette,
      hover: scored.clusters.map((count, index) => `${Page.plural(count, "cluster")}: ${Page.number(scored.silhouette[index])}${scored.chosen[index] ? ", chosen" : ""}`) }],
      Page.axis("Clusters", { type: "log", tickvals: scored.clusters }), Page.axis("Mean silhouette"));
  });
})();
