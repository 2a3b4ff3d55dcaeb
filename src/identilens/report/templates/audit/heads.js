"use strict";
// Layer x head maps of null share and correlation.
(() => {
  const kind = document.getElementById("heads-kind");
  const stretch = document.getElementById("heads-stretch");
  const note = document.getElementById("heads-note");
  const panels = [
    { id: "null-share-map", measure: "null_share", label: "null share", scale: "Cividis", bounds: [0, 1] },
    { id: "pearson-map", measure: "pearson", label: "correlation", scale: "Viridis", bounds: [0, 1] },
  ];

  function range(values, bounds) {
    const known = values.flat().filter((value) => value !== null);
    if (!known.length) return bounds;
    const least = Math.min(...known), most = Math.max(...known);
    if (stretch.checked && most > least) return [least, most];
    return [least < 0 ? -1 : bounds[0], bounds[1]];
  }

  function one(panel, maps) {
    const element = document.getElementById(panel.id);
    const values = maps[panel.measure], [zmin, zmax] = range(values, panel.bounds);
    const margin = { l: 54, r: 64, t: 8, b: 46 };
    element.style.maxWidth = `${margin.l + margin.r + Math.max(220, maps.heads.length * 64)}px`;
    const cell = (Math.min(element.parentElement.clientWidth, parseFloat(element.style.maxWidth)) - margin.l - margin.r) / maps.heads.length;
    const tall = Math.max(14, Math.min(34, 620 / maps.layers.length));
    const height = margin.t + margin.b + Math.max(90, tall * maps.layers.length);
    const axis = (names, pixels) => ({
      type: "category", categoryorder: "array", categoryarray: names.map(String), showgrid: false,
      tickmode: "linear", tick0: 0, dtick: Math.max(1, Math.ceil(names.length * 20 / pixels)),
    });
    const trace = {
      type: "heatmap", z: values, x: maps.heads.map(String), y: maps.layers.map(String), zmin, zmax,
      colorscale: panel.scale, xgap: 1, ygap: 1, hoverongaps: false,
      hovertemplate: `layer %{y}, head %{x}: ${panel.label} %{z:.3f}<extra></extra>`,
      texttemplate: cell >= 32 && tall >= 16 ? "%{z:.2f}" : "", textfont: { size: 11 },
      colorbar: { thickness: 12, outlinewidth: 0, tickfont: { size: 11 }, nticks: 6 },
    };
    Page.draw(element, [trace], {
      height, margin,
      xaxis: Page.axis("Head", { ...axis(maps.heads, cell * maps.heads.length), range: [-0.5, maps.heads.length - 0.5] }),
      yaxis: Page.axis("Layer", { ...axis(maps.layers, tall * maps.layers.length), range: [maps.layers.length - 0.5, -0.5] }),
    });
  }

  const render = Page.onDraw(() => {
    const maps = Page.data.maps[kind.value];
    for (const panel of panels) one(panel, maps);
    const missing = maps.pearson.flat().filter((value) => value === null).length;
    note.textContent = "Layers and heads count from 0."
      + (stretch.checked ? "" : " Colours run from 0 to 1 (from −1 where a mean correlation is negative), the same in every report.")
      + (missing ? ` Without a correlation, because all entries are equal in every text, and blank: ${Page.plural(missing, "head")}.` : "");
  });
  kind.addEventListener("change", render);
  stretch.addEventListener("change", render);
})();
