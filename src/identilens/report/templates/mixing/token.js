"use strict";
// One hidden state through the layers: what it takes from every input token.
(() => {
  const texts = Page.data.texts;
  if (!texts.length) return;
  const control = (name) => document.getElementById(`token-${name}`);
  const names = { contribution: "contribution", raw_rollout: "raw attention rollout", effective_rollout: "effective attention rollout" };
  const element = control("map"), letter = 7, longest = 16;
  const decoded = new Map();

  // Two bytes a number, in steps of 1/65535: [measure, layer, hidden, input].
  function numbers(place) {
    if (!decoded.has(place)) {
      const bytes = atob(document.getElementById(`mixing-text-${place}`).textContent);
      decoded.set(place, Float64Array.from({ length: bytes.length / 2 }, (_, at) => (bytes.charCodeAt(2 * at) | (bytes.charCodeAt(2 * at + 1) << 8)) / 65535));
    }
    return decoded.get(place);
  }

  function chosen() {
    const held = Lines.unique(texts.map((one) => one.text)).map((text) => {
      const words = texts.find((one) => one.text === text).inputs;
      return [text, `${text} (${Page.plural(words.length, "token")}): ${Page.shorten(words.slice(0, 12).join(" "), 36)}`];
    });
    Page.offer(control("text"), held);
    const of = texts.filter((one) => String(one.text) === control("text").value);
    Page.offer(control("kind"), of.map((one) => [one.kind, one.kind]));
    const one = of.find((candidate) => candidate.kind === control("kind").value);
    Page.offer(control("position"), one.hidden.map((name, position) => [position, `${position}: ${Page.shorten(name, 40)}`]));
    Page.offer(control("measure"), one.measures.map((measure) => [measure, names[measure]]));
    return one;
  }

  function matrix(one, position) {
    const all = numbers(texts.indexOf(one)), measure = one.measures.indexOf(control("measure").value);
    return one.layers.map((_, layer) => {
      const start = ((measure * one.layers.length + layer) * one.hidden.length + position) * one.inputs.length;
      return Array.from(all.slice(start, start + one.inputs.length));
    });
  }

  function largestContext(row, own) {
    const order = row.map((value, index) => [value, index]).filter(([value, index]) => index !== own && value > 0);
    return order.sort((a, b) => b[0] - a[0]).slice(0, 3);
  }

  function describe(one, position, values, own) {
    const last = values.at(-1), named = (index) => `“${one.inputs[index]}” (position ${index})`;
    const most = largestContext(last, own).map(([value, index]) => `${named(index)} ${Lines.percent(value)}`);
    const itself = own === null ? "" : `${Lines.percent(last[own])} from itself`;
    const context = most.length ? `${itself ? ", and most of its context from " : ""}${most.join(", ")}` : "";
    return `At layer ${one.layers.at(-1)}, “${one.hidden[position]}” (position ${position}) takes ${itself}${context} (${names[control("measure").value]}). `
      + "A row of the map sums to 1.";
  }

  const render = () => {
    const one = chosen(), position = Number(control("position").value), values = matrix(one, position), colors = Page.theme();
    const own = one.kind === "cross" ? null : position;
    const limit = Math.max(1e-6, ...values.flatMap((row) => row.filter((_, index) => control("scale").value === "all" || index !== own)));
    const room = 24 + letter * Math.max(...one.inputs.map((name) => Math.min(longest, Array.from(name).length)));
    const margin = { l: 56, r: 84, t: room + 20, b: 16 };
    const wide = Math.max(120, element.clientWidth - margin.l - margin.r), step = Math.max(1, Math.ceil(one.inputs.length * 13 / wide));
    margin.r += Math.max(0, wide - 44 * one.inputs.length);
    const ticks = one.inputs.map((_, index) => index).filter((index) => index % step === 0);
    const trace = {
      type: "heatmap", z: values, y: one.layers.map(String), zmin: 0, zmax: limit, xgap: 1, ygap: 1,
      colorscale: [[0, colors.surface], [0.5, colors.dark ? "#2d6fb0" : "#6fa8d6"], [1, colors.dark ? "#d5e8ff" : "#0b3c75"]],
      text: values.map((row, layer) => row.map((value, index) => `layer ${one.layers[layer]}: ${Page.escape(one.hidden[position])} takes `
        + `${Lines.percent(value)} from ${Page.escape(one.inputs[index])} (position ${index})`)),
      hovertemplate: "%{text}<extra></extra>",
      colorbar: { thickness: 12, outlinewidth: 0, tickformat: limit < 0.05 ? ".1%" : ".0%", tickfont: { size: 11 }, nticks: 6, x: 1, xanchor: "left" },
    };
    const shapes = own === null ? [] : [{
      type: "rect", xref: "x", yref: "paper", x0: own - 0.5, x1: own + 0.5, y0: 0, y1: 1, line: { color: colors.series[1], width: 2 },
    }];
    const tall = Math.max(14, Math.min(30, 520 / one.layers.length));
    Page.draw(element, [trace], {
      height: margin.t + margin.b + Math.max(90, tall * one.layers.length), margin, shapes,
      xaxis: Page.axis("Input token", {
        side: "top", tickangle: -90, showgrid: false, tickmode: "array", tickvals: ticks, range: [-0.5, one.inputs.length - 0.5],
        ticktext: ticks.map((index) => Page.escape(Page.shorten(one.inputs[index], longest))),
      }),
      yaxis: Page.axis("Layer", { type: "category", showgrid: false, range: [one.layers.length - 0.5, -0.5], tickmode: "linear", dtick: Math.max(1, Math.ceil(18 / tall)) }),
    });
    control("note").textContent = describe(one, position, values, own)
      + (own === null ? "" : ` The outlined column is the token itself${control("scale").value === "all" ? "" : ", which may lie beyond the end of the colours"}.`)
      + (step > 1 ? ` Every ${step}${["", "st", "nd", "rd"][step] ?? "th"} token is labelled.` : "");
  };

  // Opens on the token that was asked for, else on the word that keeps least of itself at the end.
  function open() {
    const { text, position } = Page.data.opening;
    let one = chosen();
    if (texts.some((candidate) => candidate.text === text)) {
      control("text").value = String(text);
      one = chosen();
    }
    const held = position !== null && one.text === text ? position : mostMixed(one);
    control("position").value = String(held);
  }

  function mostMixed(one) {
    if (one.kind === "cross") return 0;
    const own = one.hidden.map((_, position) => matrix(one, position).at(-1)[position]);
    const words = one.hidden.map((_, position) => position).filter((position) => /\p{L}{3}/u.test(one.hidden[position]) && !/^[[<]/.test(one.hidden[position]));
    return words.reduce((best, position) => (best === null || own[position] < own[best] ? position : best), null) ?? 0;
  }

  open();
  Page.onDraw(render);
  for (const name of ["text", "kind", "position", "measure", "scale"]) control(name).addEventListener("change", render);
})();
