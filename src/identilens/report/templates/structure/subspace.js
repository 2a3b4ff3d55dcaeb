"use strict";
// Dimension and spectrum of R, for one head or the mean over all; scores of patterns by head.
(() => {
  const { heads, growth, spectrum, positions, texts, patterns, length: n } = Page.data;
  const select = document.getElementById("subspace-head");
  const labels = heads.head.map((head, index) => [`${heads.kind[index]}.${heads.layer[index]}.${head}`, `${heads.kind[index]} layer ${heads.layer[index]}, head ${head}`]);
  Page.offer(select, [["", `mean over all ${Page.plural(heads.head.length, "head")}`], ...labels]);

  const here = (rows) => (index) => select.value === "" || select.value === `${rows.kind[index]}.${rows.layer[index]}.${rows.head[index]}`;
  const mean = (values) => { const known = values.filter((value) => value !== null); return known.length ? known.reduce((total, value) => total + value, 0) / known.length : null; };

  // The mean of a column for each value of another.
  function means(rows, by, column) {
    const groups = new Map();
    rows[by].forEach((value, index) => groups.set(value, [...(groups.get(value) ?? []), rows[column][index]]));
    return [[...groups.keys()], [...groups.values()].map(mean)];
  }

  function lines(rows, by, columns, say) {
    return columns.map(([column, name]) => {
      const [x, y] = means(rows, by, column);
      return { name, x, y, hover: x.map((value, index) => `${say(value)}: ${name} ${Page.number(y[index])}`) };
    });
  }

  const render = Page.onDraw(() => {
    const grown = Lines.select(growth, here(growth));
    Lines.draw(document.getElementById("subspace-growth"), lines(grown, "texts", [
      ["dim_r", "dim R"], ["dim_half", "visible in half"], ["dim_95", "95 % of the spectrum"], ["energy_95", "95 % of the energy"],
    ], (value) => Page.plural(value, "text")), Page.axis("Texts", { type: "log", tickformat: "~d", dtick: "D2" }), Page.axis("Dimension", { range: [0, n * 1.04] }));
    const own = Lines.select(spectrum, here(spectrum));
    Lines.draw(document.getElementById("subspace-spectrum"), lines(own, "index", [["visibility", "visible in this share of texts"], ["energy", "share of the values’ energy"]],
      (value) => `direction ${value + 1}`), Page.axis("Direction"), Page.axis("Eigenvalue", { range: [0, 1.03] }), { markers: false });
    const places = Lines.select(positions, here(positions));
    Lines.draw(document.getElementById("subspace-positions"), lines(places, "position", [["visibility", "visible"]], (value) => `position ${value}`),
      Page.axis("Position"), Page.axis("Share", { tickformat: ".0%", range: [0, 1.03] }), { markers: n <= 128, height: 300 });
    const of = Lines.select(texts, here(texts)), percent = (column) => Lines.percent(mean(of[column]));
    document.getElementById("subspace-texts").textContent = `On average T has rank ${Page.number(mean(of.rank))} of ${n}. ${percent("ignored")} of a text's attention (squared) lies in `
      + `directions of R that this text's values send to zero. ${percent("outside")} of its ker(T′)⊥ lies outside R, and ${percent("outside_half")} outside the directions that half of the texts can tell.`;
  });
  select.addEventListener("change", render);

  const weights = document.getElementById("patterns-weights");
  const drawn = Page.onDraw(() => {
    const rows = Lines.select(patterns, (index) => patterns.weights[index] === weights.value);
    const names = Lines.unique(rows.pattern), count = rows.pattern.length / names.length;
    const at = (field, row) => Array.from({ length: count }, (_, head) => rows[field][head * names.length + row]);
    const z = names.map((_, row) => at("score", row)), place = names.map((_, row) => at("place", row));
    const label = Array.from({ length: count }, (_, head) => `${rows.kind[head * names.length]} layer ${rows.layer[head * names.length]}, head ${rows.head[head * names.length]}`);
    const starts = label.map((_, head) => head).filter((head) => head === 0 || rows.layer[head * names.length] !== rows.layer[(head - 1) * names.length]);
    const colors = Page.theme();
    Page.draw(document.getElementById("patterns-plot"), [{
      type: "heatmap", z, y: names, zmin: -1, zmax: 1, colorscale: colors.diverging, showscale: false, xgap: count < 100 ? 1 : 0, ygap: 2,
      text: z.map((line, row) => line.map((score, head) => `${label[head]}: ${names[row]}${place[row][head] === null ? "" : ` at ${place[row][head]}`}, score ${Page.fixed(score, 2)}`)),
      hovertemplate: "%{text}<extra></extra>",
    }], {
      height: 290, margin: { l: 96, r: 16, t: 12, b: 48 },
      xaxis: Page.axis("Heads, by layer", { tickvals: starts, ticktext: starts.map((head) => `${rows.layer[head * names.length]}`), tickangle: 0, showgrid: false }),
      yaxis: Page.axis("", { autorange: "reversed", showgrid: false }),
    });
  });
  weights.addEventListener("change", drawn);
})();
