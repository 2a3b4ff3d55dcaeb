"use strict";
// What attention alone would have said: rollouts beside contributions.
(() => {
  const kind = document.getElementById("rollout-kind"), pairs = document.getElementById("rollout-pairs"), method = document.getElementById("rollout-method");
  if (!pairs) return;
  const note = document.getElementById("rollout-note");
  const names = { contribution: "contributions", raw: "raw rollout", effective: "effective rollout" };

  function line(rows, key, name, column) {
    const own = Lines.select(rows, (index) => rows[key][index] === name);
    return {
      // Where both rollouts are equal, the one below shows between the dashes.
      name: names[name], x: own.layer, y: own[column], dash: name === "effective" ? "dash" : "solid",
      hover: own.layer.map((layer, index) => `${names[name]}, layer ${layer}: ${column === "median" ? Lines.percent(own.median[index]) : Page.fixed(own[column][index], 3)}`),
    };
  }

  const render = Page.onDraw(() => {
    const { series } = Page.theme();
    const medians = Page.data.own_medians[kind.value], all = Page.data.correlation[kind.value];
    const layers = Lines.unique(medians.layer).sort((a, b) => a - b);
    Lines.draw(document.getElementById("rollout-own"), Object.keys(names).map((name) => line(medians, "measure", name, "median")),
      Lines.layerAxis(layers), Page.axis("Median own share", { tickformat: ".0%", rangemode: "tozero" }));
    const rows = Lines.select(all, (index) => all.pairs[index] === pairs.value);
    const least = Math.min(0, ...rows[method.value].filter((value) => value !== null));
    const values = (name) => line(medians, "measure", name, "median").y;
    const equal = values("raw").every((value, index) => Math.abs(value - values("effective")[index]) < 1e-3);
    note.textContent = equal ? "Raw and effective rollout are the same here: in texts so short, nearly all attention is effective." : "";
    // Colours as on the left, where contributions take the first.
    Lines.draw(document.getElementById("rollout-correlation"), ["raw", "effective"].map((name) => line(rows, "rollout", name, method.value)),
      Lines.layerAxis(layers), Page.axis("Correlation", { range: [least < 0 ? least - 0.08 : -0.02, 1.04], zeroline: least < 0 }), { colors: [...series.slice(1), series[0]] });
  });
  for (const select of [kind, pairs, method]) select.addEventListener("change", render);
})();
