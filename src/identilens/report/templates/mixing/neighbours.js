"use strict";
// Context by distance: in which layer groups of neighbours contribute most, and which relative positions contribute.
(() => {
  const kind = document.getElementById("neighbours-kind");
  const groups = document.getElementById("neighbours-groups"), positions = document.getElementById("neighbours-positions");
  const nearby = 20;

  function drawGroups(rows) {
    const layers = Lines.unique(rows.layer).sort((a, b) => a - b);
    const lines = Lines.unique(rows.group).map((group) => {
      const own = Lines.select(rows, (index) => rows.group[index] === group);
      return {
        name: group, x: own.layer, y: own.share,
        hover: own.layer.map((layer, index) => `${group} neighbours, layer ${layer}: ${Lines.percent(own.share[index])} of their total`
          + `<br>mean contribution of one ${Lines.percent(own.mean[index])}`),
      };
    });
    const most = Math.max(0.01, ...rows.share);
    Lines.draw(groups, lines, Lines.layerAxis(layers), Page.axis("Relative contribution", { tickformat: ".0%", range: [0, 1.08 * most] }));
  }

  function drawPositions(rows) {
    const layers = Lines.unique(rows.layer), reach = Math.max(1, ...rows.offset.map(Math.abs));
    // The own token is no context: the line breaks there instead of crossing it.
    const lines = layers.map((layer) => {
      const own = Lines.select(rows, (index) => rows.layer[index] === layer);
      const after = own.offset.findIndex((offset) => offset > 0);
      const broken = (values, gap) => (after > 0 ? [...values.slice(0, after), gap, ...values.slice(after)] : values);
      return {
        name: `layer ${layer}`, x: broken(own.offset, 0), y: broken(own.share, null),
        hover: broken(own.offset.map((offset, index) => `layer ${layer}, ${Math.abs(offset)} to the ${offset < 0 ? "left" : "right"}: `
          + `${Lines.percent(own.share[index])} of all context<br>${Page.plural(own.pairs[index], "pair")}`), ""),
      };
    });
    const most = Math.max(...rows.share, 0);
    const shown = Math.min(reach, nearby), left = rows.offset.some((offset) => offset < 0), right = rows.offset.some((offset) => offset > 0);
    Lines.draw(positions, lines, Page.axis("Relative position of the input token", { range: [left ? -shown - 0.5 : -0.5, right ? shown + 0.5 : 0.5] }),
      Page.axis("Share of all context", { tickformat: most < 0.1 ? ".1%" : ".0%", rangemode: "tozero" }), { markers: reach <= 40 });
  }

  const render = Page.onDraw(() => {
    drawGroups(Page.data.neighbours[kind.value]);
    drawPositions(Page.data.positions[kind.value]);
  });
  kind.addEventListener("change", render);
})();
