"use strict";
// One attention map: raw, effective and null side by side.
(() => {
  const { maps, tokens } = Page.data.examples;
  if (!maps.length) return;
  const control = (name) => document.getElementById(`view-${name}`);
  const selectors = ["text", "kind", "layer", "head"].map(control);
  const parts = ["raw", "effective", "null"];
  const panels = Maps.panels("view", parts);

  // Offers, selector by selector, what the page holds under the choices before it.
  function narrow() {
    let left = maps;
    for (const select of selectors) {
      const field = select.id.slice(5);
      const values = [...new Set(left.map((map) => map[field]))];
      Page.offer(select, values.map((value) => [value, label(field, value, left)]));
      left = left.filter((map) => String(map[field]) === select.value);
    }
    return left[0];
  }

  function label(field, value, left) {
    const map = left.find((one) => one[field] === value);
    if (field === "text") {
      const kind = left.some((one) => one.text === value && one.kind === "encoder") ? "encoder" : map.kind;
      const words = tokens[`${value}.${kind}.query`];
      return `${value} (${Page.plural(words.length, "token")}): ${Page.shorten(words.slice(0, 12).join(" "), 36)}`;
    }
    return field === "head" ? `${value} (null share ${Page.fixed(map.null_share, 2)})` : String(value);
  }

  function choose() {
    const map = narrow();
    const space = `${map.nullity ? "a null space" : "no null space"} (rank ${map.rank}, nullity ${map.nullity})`;
    control("facts").textContent = `${Page.plural(map.n_query, "query", "queries")} × ${Page.plural(map.n_key, "key")}, dᵥ = ${map.d_v}: ${space}; `
      + `null share ${Page.fixed(map.null_share, 3)}, correlation of raw and effective ${Page.fixed(map.pearson, 3)}.`;
    panels.show({ queries: tokens[`${map.text}.${map.kind}.query`], keys: tokens[`${map.text}.${map.kind}.key`], matrices: Maps.decode(map, parts) });
  }

  // Opens on the map of the first text with the most to see.
  const first = maps.filter((map) => map.text === maps[0].text).reduce((best, map) => (map.null_share > best.null_share ? map : best));
  for (const select of selectors) {
    narrow();
    select.value = first[select.id.slice(5)];
  }
  narrow();
  choose();
  for (const select of selectors) select.addEventListener("change", choose);
})();
