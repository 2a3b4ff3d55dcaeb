"use strict";
// The intervals of one query's weights, and which keys stand above which for certain.
(() => {
  const { rows, tokens } = Page.data.intervals;
  if (!rows.length) return;
  const control = (name) => document.getElementById(`intervals-${name}`);
  const selectors = ["text", "kind", "layer", "head", "query"].map(control);
  let row = null, names = [];

  function label(field, value, left) {
    const one = left.find((candidate) => candidate[field] === value);
    if (field === "query") return `${value}: ${Page.shorten(tokens[`${one.text}.${one.kind}.query`][value], 40)}`;
    if (field !== "text") return String(value);
    const words = tokens[`${value}.${one.kind}.query`];
    return `${value} (${Page.plural(words.length, "token")}): ${Page.shorten(words.slice(0, 12).join(" "), 36)}`;
  }

  // Offers, selector by selector, what the page holds under the choices before it.
  function narrow() {
    let left = rows;
    for (const select of selectors) {
      const field = select.id.slice("intervals-".length);
      Page.offer(select, [...new Set(left.map((one) => one[field]))].map((value) => [value, label(field, value, left)]));
      left = left.filter((one) => String(one[field]) === select.value);
    }
    return left[0];
  }

  function placesInOrder() {
    const places = row.key.map((_, place) => place);
    return control("sort").value === "weight" ? places.sort((a, b) => row.weight[b] - row.weight[a]) : places;
  }

  function draw() {
    const colors = Page.theme(), places = placesInOrder();
    const of = (values) => places.map((place) => values[place]);
    const labels = places.map((place) => `${names[row.key[place]]} · ${row.key[place]}`);
    const at = places.map((_, index) => index);
    const tone = places.map((place) => (row.pinned[place] ? colors.series[2] : colors.series[0]));
    const bars = {
      type: "bar", orientation: "h", y: at, base: of(row.lo), x: places.map((place) => row.hi[place] - row.lo[place]),
      marker: { color: tone, opacity: 0.35 }, hoverinfo: "skip",
    };
    const dots = {
      type: "scatter", mode: "markers", y: at, x: of(row.weight), marker: { color: tone, size: 7 },
      customdata: places.map((place, index) => [Page.escape(labels[index]), row.lo[place], row.hi[place], row.effective[place], row.minimum_norm[place]]),
      hovertemplate: "%{customdata[0]}: %{x:.4g}<br>from %{customdata[1]:.4g} to %{customdata[2]:.4g}<br>effective %{customdata[3]:.4g}, least norm %{customdata[4]:.4g}<extra></extra>",
    };
    const element = control("plot"), longest = Math.max(...labels.map((name) => Array.from(Page.shorten(name, 22)).length));
    Page.draw(element, [bars, dots], {
      height: 80 + 17 * places.length, margin: { l: 24 + 6.8 * longest, r: 16, t: 34, b: 46 }, bargap: 0.35,
      xaxis: Page.axis("Attention weight", { rangemode: "tozero", side: "bottom" }),
      yaxis: Page.axis("", { tickmode: "array", tickvals: at, ticktext: labels.map((name) => Page.escape(Page.shorten(name, 22))), range: [places.length - 0.5, -0.5], showgrid: false }),
    });
    if (element.dataset.bound) return;
    element.dataset.bound = "yes";
    element.on("plotly_click", ({ points: [point] }) => {
      control("key").value = row.key[placesInOrder()[point.y]];
      tellOrder();
    });
  }

  function tellOrder() {
    const key = Number(control("key").value);
    const named = (keys) => (keys.length ? keys.map((one) => `${names[one]} (${one})`).join(", ") : "none");
    const [above, below] = row.order, weight = (one) => row.weight[row.key.indexOf(one)];
    const lower = below.filter((_, index) => above[index] === key).sort((a, b) => weight(b) - weight(a));
    const higher = above.filter((_, index) => below[index] === key).sort((a, b) => weight(b) - weight(a));
    const open = row.key.length - 1 - lower.length - higher.length;
    control("order").textContent = `Certainly above ${names[key]} (${key}): ${named(higher)}. Certainly below it: ${named(lower)}. `
      + `Not certain: the order with ${Page.plural(open, "other key")}.`;
  }

  function choose() {
    row = narrow();
    names = tokens[`${row.text}.${row.kind}.key`];
    const pinned = row.pinned.reduce((sum, one) => sum + one, 0);
    control("facts").textContent = `${Page.plural(row.key.length, "key")}, simplex nullity ${row.nullity}: ${pinned} pinned; `
      + (row.top === null ? "no key is first in every alternative; " : `${names[row.top]} (${row.top}) is first in every alternative; `)
      + `${row.order[0].length} of ${Page.plural(row.pairs, "pair")} have a certain order.`;
    Page.offer(control("key"), row.key.map((key) => [key, `${key}: ${Page.shorten(names[key], 40)}`]));
    control("key").value = row.key[row.weight.indexOf(Math.max(...row.weight))];
    tellOrder();
    draw();
  }

  // Opens on the row with the least certain weight.
  const widest = (one) => Math.max(...one.hi.map((hi, place) => hi - one.lo[place]));
  const first = rows.reduce((best, one) => (widest(one) > widest(best) ? one : best));
  for (const select of selectors) {
    narrow();
    select.value = first[select.id.slice("intervals-".length)];
  }
  choose();
  for (const select of selectors) select.addEventListener("change", choose);
  control("sort").addEventListener("change", draw);
  control("key").addEventListener("change", tellOrder);
  Page.onDraw(draw);
})();
