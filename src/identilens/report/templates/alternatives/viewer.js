"use strict";
// Raw, effective and alternative attention of one head, and what the alternative changed in the model.
(() => {
  const { maps, tokens, titles } = Page.data.alternatives;
  if (!maps.length) return;
  const control = (name) => document.getElementById(`alt-${name}`);
  const selectors = { text: control("text"), kind: control("kind"), layer: control("layer"), head: control("head"), alternative: control("which") };
  const parts = ["raw", "effective", "alternative"];
  const panels = Maps.panels("alt", parts);
  let map = null;

  function label(field, value, left) {
    if (field === "alternative") return titles[value] ?? value;
    if (field !== "text") return String(value);
    const words = tokens[`${value}.${left.find((one) => one.text === value).kind}.query`];
    return `${value} (${Page.plural(words.length, "token")}): ${Page.shorten(words.slice(0, 12).join(" "), 36)}`;
  }

  // Offers, selector by selector, what the page holds under the choices before it.
  function narrow() {
    let left = maps;
    for (const [field, select] of Object.entries(selectors)) {
      Page.offer(select, [...new Set(left.map((one) => one[field]))].map((value) => [value, label(field, value, left)]));
      left = left.filter((one) => String(one[field]) === select.value);
    }
    return left[0];
  }

  function drawChanges() {
    const colors = Page.theme();
    const least = 1e-9;
    const traces = Object.entries(map.changes).map(([sequence, values], index) => ({
      type: "scatter", mode: "lines+markers", name: sequence, x: values.map((_, layer) => layer), y: values.map((value) => Math.max(value, least)),
      customdata: values, line: { color: colors.series[index] }, hovertemplate: `${sequence} hidden state %{x}: %{customdata:.1e}<extra></extra>`,
    }));
    Page.draw(control("changes"), traces, {
      height: 240, showlegend: traces.length > 1, margin: { l: 74, r: 16, t: 12, b: 48 },
      xaxis: Page.axis("Hidden state (0: embeddings)", { dtick: 1 }),
      yaxis: Page.axis("Relative change", { type: "log", exponentformat: "power", range: [-9.3, 0] }),
    });
  }

  function choose() {
    map = narrow();
    const measured = [`its final hidden state changed by ${Page.number(map.hidden_change, 2)} of its length`];
    if (map.logits_change !== null) measured.push(`its logits by ${Page.number(map.logits_change, 2)}`);
    if (map.loss_change !== null) measured.push(`its loss by ${Page.number(map.loss_change, 2)}`);
    control("facts").textContent = `Simplex nullity ${map.simplex_nullity}. The alternative lies ${Page.fixed(map.mean_total_variation, 3)} away (mean total variation; `
      + `largest row ${Page.fixed(map.largest_total_variation, 3)}); put into the model, ${measured.join(", ")}.${map.note ? ` Note: ${map.note}.` : ""}`;
    panels.show({ queries: tokens[`${map.text}.${map.kind}.query`], keys: tokens[`${map.text}.${map.kind}.key`], matrices: Maps.decode(map, parts) });
    drawChanges();
  }

  // Opens on the alternative that lies farthest away.
  const first = maps.reduce((best, one) => (one.mean_total_variation > best.mean_total_variation ? one : best));
  for (const [field, select] of Object.entries(selectors)) {
    narrow();
    select.value = first[field];
  }
  choose();
  for (const select of Object.values(selectors)) select.addEventListener("change", choose);
  Page.onDraw(drawChanges);
})();
