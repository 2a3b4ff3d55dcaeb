"use strict";
// Raw beside effective attention by token type and layer.
(() => {
  const kind = document.getElementById("types-kind");
  const legend = document.getElementById("types-legend");
  if (!legend) return;
  const key = document.getElementById("types-key");
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
  const marks = ["●", "■", "◆", "▲", "✚", "✖", "★", "▼"];
  const { names } = Page.data.types;
  const hidden = new Set();

  function select(table, keep) {
    const rows = table.layer.map((_, index) => index).filter(keep);
    const of = (name) => rows.map((index) => table[name][index]);
    return { type: of("type"), layer: of("layer"), head: of("head"), raw: of("raw"), effective: of("effective") };
  }

  function traces(table, measure, colors) {
    const found = [];
    for (let type = 0; type < names.length; type += 1) {
      if (hidden.has(type)) continue;
      const rows = table.layer.map((_, index) => index).filter((index) => table.type[index] === type);
      if (!rows.length) continue;
      const color = colors.series[type % colors.series.length], name = Page.escape(names[type]);
      const layers = [...new Set(rows.map((index) => table.layer[index]))].sort((a, b) => a - b);
      const mean = layers.map((layer) => {
        const values = rows.filter((index) => table.layer[index] === layer).map((index) => table[measure][index]);
        return values.reduce((sum, value) => sum + value, 0) / values.length;
      });
      found.push({
        type: "scatter", mode: "markers", x: rows.map((index) => table.layer[index]), y: rows.map((index) => table[measure][index]),
        marker: { color, size: 5, opacity: 0.5, symbol: symbols[type % symbols.length] }, cliponaxis: false,
        text: rows.map((index) => `head ${table.head[index]}`), hovertemplate: `${name}<br>layer %{x}, %{text}: %{y:.3f}<extra></extra>`,
      }, {
        type: "scatter", mode: layers.length > 1 ? "lines" : "markers", x: layers, y: mean, line: { color, width: 2.5 },
        marker: { color, size: 13, symbol: "line-ew-open", line: { width: 3, color } },
        hovertemplate: `${name}<br>layer %{x}, mean over heads: %{y:.3f}<extra></extra>`,
      });
    }
    return found;
  }

  function pair(prefix, table, title) {
    const colors = Page.theme();
    const shown = table.type.map((type, index) => (hidden.has(type) ? [] : [table.raw[index], table.effective[index]])).flat();
    const least = Math.min(0, ...shown), most = Math.max(0.05, ...shown), room = 0.04 * (most - least);
    const layers = [...new Set(table.layer)].sort((a, b) => a - b);
    const ticks = layers.length <= 14 ? { tickvals: layers } : { nticks: 10, tickformat: "d" };
    for (const measure of ["raw", "effective"]) {
      const element = document.getElementById(`${prefix}-${measure}`);
      Page.draw(element, traces(table, measure, colors), {
        height: 380, hovermode: "closest",
        xaxis: Page.axis("Layer (from 0)", { ...ticks, range: [layers[0] - 0.3, layers.at(-1) + 0.3] }),
        yaxis: Page.axis(title, { range: [least - room, most + room], zeroline: least < 0, zerolinecolor: colors.soft }),
      });
    }
  }

  function drawLegend(used) {
    const colors = Page.theme();
    const focused = legend.contains(document.activeElement) ? document.activeElement.value : null;
    legend.replaceChildren(...used.map((type) => {
      const button = document.createElement("button"), mark = document.createElement("span");
      mark.textContent = marks[type % marks.length];
      mark.style.color = colors.series[type % colors.series.length];
      mark.setAttribute("aria-hidden", "true");
      button.type = "button";
      button.value = String(type);
      button.setAttribute("aria-pressed", String(!hidden.has(type)));
      button.append(mark, names[type]);
      button.addEventListener("click", () => {
        if (!hidden.delete(type)) hidden.add(type);
        render();
      });
      return button;
    }));
    for (const button of legend.children) if (button.value === focused) button.focus();
  }

  const render = Page.onDraw(() => {
    const { received, pairs } = Page.data.types[kind.value];
    const used = names.map((_, type) => type).filter((type) => received.type.includes(type) || pairs.type.includes(type));
    drawLegend(used);
    Page.offer(key, used.filter((type) => received.type.includes(type)).map((type) => [type, names[type]]));
    pair("received", received, "Mean attention received");
    const chosen = Number(key.value);
    for (const measure of ["raw", "effective"]) {
      document.getElementById(`pairs-${measure}-title`).textContent = `${measure === "raw" ? "Raw" : "Effective"} attention to ${names[chosen]}`;
    }
    pair("pairs", select(pairs, (index) => pairs.key[index] === chosen), "Mean attention put on it");
  });
  kind.addEventListener("change", render);
  key.addEventListener("change", render);
})();
