// Maps by query and key token: tokenMaps(root, {maps, tokens, first, rules}, look, ask) fills `root` and returns what
// can be done with it; look() gives {page, sequential, diverging}; ask(choices, query), where there is someone to ask,
// promises the proven columns of a row ({key, value, lo, hi, norm_share}) and, in words, what must stay (kept); address keeps what is shown, as a query.
const LAYER_WORDS = {
  raw: "the weights after the softmax", effective: "the part of the weights that the output depends on as a direction",
  null: "raw − effective: has no effect on the output as a direction",
  "norm share": "share of each key in what the row adds up, by norm",
  "block means": "attention of a block of neighbouring queries, on average, to all keys of a block",
  certain: "what every alternative with the same output leaves on each key",
  alternative: "other weights, as far away as possible, with the same output of the head",
  "same answer": "another row with which the model gives the same answer: the head's output may change, so that weights may lie outside of ranges that keep it",
  "changed row": "one row with a weight moved by hand, or without a key",
  "other matrices": "weights that the head computes with other query and key matrices, with the same output",
};

// The address of the page, for the viewer that was used last.
const addressOf = (id) => ({
  read() { const [named, state] = location.hash.slice(1).split("?"); return named === id ? state : ""; },
  // A page inside another (a notebook's output) has no address of its own.
  write(state) { if (location.protocol !== "about:") history.replaceState(null, "", `#${id}?${state}`); },
});

function tokenMaps(root, { maps, tokens, first, rules }, look, ask = null, address = addressOf(root.id)) {
  const names = Object.keys(maps[0].choices), cache = new Map(), view = new Window();
  let map = maps[first], found = {}, shown = [], panels = [], cell = null, row = null, stop = () => {}, turn = 0, asked = 0;

  const select = (label, options, change) => {
    const one = made("select", { ariaLabel: label }, ...options.map(([value, words]) => made("option", { value, textContent: words })));
    one.addEventListener("change", change);
    return { one, label: made("label", {}, label, one) };
  };
  const offer = (one, options) => {
    const before = one.value;
    one.replaceChildren(...options.map((value) => made("option", { value, textContent: value })));
    if (options.map(String).includes(before)) one.value = before;
  };
  const button = (words, title, act) => {
    const one = made("button", { type: "button", textContent: words, title });
    one.addEventListener("click", act);
    return one;
  };

  const choices = Object.fromEntries(names.map((name) => [name, select(titled(name), [], () => choose())]));
  const colours = select("Colours", [["root", "by square root"], ["linear", "linear"]], () => paint());
  const ends = select("Scale", [["own", "to each map's largest"], ["common", "one for all shown"], ["one", "0 to 1"]], () => paint());
  const together = button("Side by side", "Several layers beside each other", () => beside(together.getAttribute("aria-pressed") !== "true"));
  const segment = made("div", { className: "segment" });
  segment.setAttribute("role", "group");
  segment.setAttribute("aria-label", "Layer shown");
  const zoom = made("div", { className: "segment" }, ...[["−", "Zoom out (−)", 1 / 1.5], ["+", "Zoom in (+)", 1.5], ["Whole map", "Whole map (0)", 0]].map(([words, title, by]) => button(words, title, () => {
    if (by) view.by(by, tokens[map.queries].length, tokens[map.keys].length); else view.whole();
    drawn();
  })));
  const title = made("h3", { className: "viewer-title" }), note = made("p", { className: "soft" }), words = made("p", { className: "soft layer-words" });
  const area = made("div", { className: "maps" }), readout = made("p", { className: "readout" });
  readout.setAttribute("aria-live", "polite");
  const panel = new RowPanel(() => lock(row), Boolean(ask), () => { lock(row); panels[0].canvas.focus({ preventScroll: true }); }), line = new TextLine((query) => lock(query)), gallery = new Gallery((place) => open(place));
  const several = names.includes("layer") && names.includes("head");
  // Maps of long texts have blocks of tokens in place of tokens.
  const inBlocks = () => shown[0] === "block means", called = (side, at) => { const name = tokens[map[side]][at]; return inBlocks() ? `the block from ${name}` : `${bare(name)} (${side === "keys" ? "key" : "query"} ${at})`; };
  const help = made("details", { className: "soft" }, made("summary", { textContent: "Pointer and keys" }), made("p", { textContent: "Click a row to lock it; its keys, with intervals, stand beside the map. Wheel (after a click, or with Ctrl), pinch, + and − zoom; drag or Shift with arrow keys pans; 0 shows the whole map. Arrow keys move from cell to cell, Enter locks the row; with a row locked, arrow keys go through heads (left, right) and layers (up, down). Escape, or Close beside the keys, unlocks. The address holds what you see." }));
  root.replaceChildren(
    made("div", { className: "viewer-bar" }, ...names.map((name) => choices[name].label)),
    made("div", { className: "viewer-top" }, made("figure", { hidden: !several }, gallery.grid), made("div", {}, title, note, help)),
    made("div", { className: "viewer-bar" }, segment, together, colours.label, ends.label, zoom),
    words, made("div", { className: "viewer-stage" }, made("div", {}, area, readout), panel.root), line.root,
  );

  const of = (one) => (several ? `layer ${one.choices.layer}, head ${one.choices.head}` : names.map((name) => `${name} ${one.choices[name]}`).join(", "));

  // A selector for each choice; each offers what exists with those before it.
  function chosen() {
    let left = maps;
    for (const name of names) {
      offer(choices[name].one, [...new Set(left.map((one) => one.choices[name]))]);
      choices[name].label.hidden = new Set(maps.map((one) => one.choices[name])).size < 2;
      left = left.filter((one) => String(one.choices[name]) === choices[name].one.value);
    }
    return left[0];
  }

  function set(wanted) {
    for (const name of names) {
      chosen();
      const offered = [...choices[name].one.options].find((one) => one.value === String(wanted[name]));
      if (offered) offered.selected = true;
    }
    return chosen();
  }

  function open(place) {
    set({ ...map.choices, ...place });
    return choose();
  }

  // The numbers of a map, made as they are asked for: packed layers, then what follows from them.
  function numbers(one) {
    if (!cache.has(one)) {
      if (cache.size > 400) cache.delete(cache.keys().next().value);
      const sizes = [tokens[one.queries].length, tokens[one.keys].length], held = {};
      const space = one.space && spaceOf(one.space, ...sizes), packed = (name) => matrixOf(one.layers[name], sizes[0] * sizes[1]);
      const make = {
        effective: async () => effectiveOf(await get("raw"), await space, ...sizes),
        "norm share": async () => normShares(await get("raw"), await space, ...sizes),
        certain: async () => new Float32Array(sizes[0] * sizes[1]).fill(NaN),
      };
      const get = (name) => (held[name] ??= (async () => {
        if (one.layers[name]) return packed(name);
        if (!one.differences[name]) return make[name]();
        const [from, what] = await Promise.all(one.differences[name].map(get));
        return from.map((value, at) => value - what[at]);
      })());
      cache.set(one, { get, space, layers: [...new Set([...Object.keys(one.layers), ...(one.space ? ["effective"] : []), ...Object.keys(one.differences), ...(one.space ? ["norm share", "certain"] : [])])] });
    }
    return cache.get(one);
  }

  async function choose() {
    const before = map, now = (turn += 1);
    map = chosen();
    const held = numbers(map), all = held.layers;
    shown = shown.filter((name) => all.includes(name));
    if (!shown.length) shown = [all[0]];
    if ([...segment.children].map((one) => one.dataset.layer).join() !== all.join()) {
      segment.replaceChildren(...all.map((name) => {
        const one = button(titled(name), LAYER_WORDS[name] || name, () => pick(name));
        one.dataset.layer = name;
        return one;
      }));
    }
    segment.hidden = together.hidden = all.length < 2;
    if (map.queries !== before.queries || map.keys !== before.keys) { row = cell = null; view.whole(); }
    const layers = await Promise.all(shown.map(held.get)), space = await held.space, raw = space && (await held.get("raw"));
    if (now !== turn) return;
    found = { layers: Object.fromEntries(shown.map((name, at) => [name, layers[at]])), space, raw };
    title.textContent = titled(of(map));
    note.textContent = map.note;
    if (several) heads();
    rows();
    paint();
    certain(now);
  }

  function pick(name) {
    if (together.getAttribute("aria-pressed") !== "true") shown = [name];
    else if (!shown.includes(name)) shown = [...shown, name];
    else if (shown.length > 1) shown = shown.filter((other) => other !== name);
    choose();
  }

  function beside(on) {
    together.setAttribute("aria-pressed", String(on));
    const { layers } = numbers(map);
    shown = on ? layers.slice(0, 2).includes(shown[0]) ? layers.slice(0, 2) : [layers[0], shown[0]] : shown.slice(0, 1);
    choose();
  }

  // Least values of every weight, row by row while the page is idle.
  function certain(now) {
    stop();
    const values = found.layers.certain;
    if (!values) return;
    const keys = tokens[map.keys].length, missing = [...tokens[map.queries].keys()].filter((query) => Number.isNaN(values[query * keys + keys - 1]));
    if (row !== null && missing.includes(row)) missing.unshift(row);
    let last = performance.now();
    stop = working(() => {
      if (now !== turn) return false;
      const query = missing.shift();
      if (query === undefined) { paint(); root.dataset.certain = "true"; return false; }
      const programs = new RowIntervals(found.raw.subarray(query * keys, (query + 1) * keys), found.space, query);
      for (let key = 0; key < keys; key += 1) values[query * keys + key] = programs.lower(key);
      if (performance.now() - last > 400) { last = performance.now(); paint(); }
      return true;
    });
  }

  let filled = "";
  function heads() {
    const others = names.filter((name) => name !== "layer" && name !== "head"), layer = shown[0] === "certain" ? "raw" : shown[0];
    const key = JSON.stringify([others.map((name) => map.choices[name]), layer, look().page.surface, colours.one.value]);
    if (key !== filled) {
      filled = key;
      const alike = maps.filter((one) => others.every((name) => one.choices[name] === map.choices[name]));
      gallery.fill(alike.map((one) => one.choices), async (place) => {
        const one = alike.find((other) => other.choices === place), held = numbers(one), values = await held.get(held.layers.includes(layer) ? layer : held.layers[0]);
        return pictureOf(values, tokens[one.queries].length, tokens[one.keys].length, painterOf(reachOf(values), colours.one.value === "root", look()), 48);
      });
    }
    gallery.mark(map.choices);
  }

  function rows() {
    segment.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(shown.includes(one.dataset.layer))));
    root.classList.toggle("locked", row !== null);
    if (row === null) { panel.hide(); return; }
    const keys = tokens[map.keys], part = (values) => values.subarray(row * keys.length, (row + 1) * keys.length), { space, raw } = found;
    const more = space ? { weights: part(raw), shares: part(normShares(raw, space, tokens[map.queries].length, keys.length)), intervals: new RowIntervals(part(raw), space, row), rules } : {};
    const about = { query: row, name: tokens[map.queries][row], keys, layer: shown[0], blocks: inBlocks(), values: part(found.layers[shown[0]]), ...more };
    root.dispatchEvent(new CustomEvent("row", { bubbles: true, detail: { choices: map.choices, ...about } }));
    if (ask && space) proven(about);
    else panel.show(about);
  }

  // The same row as someone else proves it; until then without intervals, so that there is one answer.
  async function proven(about) {
    panel.show({ ...about, intervals: undefined, waiting: "The range of each weight is being proven…" });
    let columns = null, why = "";
    const now = (asked += 1);
    try { columns = await ask(map.choices, about.query); } catch (error) { why = ` ${error.message}`; }
    if (now !== asked || row !== about.query) return;
    if (!columns) { panel.show({ ...about, intervals: undefined, waiting: `The ranges of these weights could not be proven.${why}` }); return; }
    const of = (name) => { const all = new Float64Array(about.keys.length); columns.key.forEach((key, at) => (all[key] = columns[name][at])); return all; };
    const [lo, hi] = [of("lo"), of("hi")];
    panel.show({ ...about, weights: of("value"), shares: of("norm_share"), intervals: { seen: columns.key, lower: (key) => lo[key], upper: (key) => hi[key], exact: columns.exact_lo && { lower: of("exact_lo"), upper: of("exact_hi") }, proven: true, kept: columns.kept, outcome: columns.outcome } });
    root.dispatchEvent(new CustomEvent("row", { bubbles: true, detail: { choices: map.choices, ...about, proven: { lo, hi } } }));
  }

  // What a map shows, in words.
  function inWords(name, values) {
    const keys = tokens[map.keys], queries = tokens[map.queries];
    let most = 0;
    values.forEach((value, at) => { if (Math.abs(value) > Math.abs(values[most]) || Number.isNaN(values[most])) most = at; });
    const [query, key] = [Math.floor(most / keys.length), most % keys.length];
    return `${titled(name)}, ${of(map)}: ${queries.length} × ${keys.length} ${inBlocks() ? "blocks" : "tokens"}; largest ${written(values[most])}, from ${called("queries", query)} to ${called("keys", key)}.`;
  }

  // The values of the cells that a query sees; those of hidden keys are no weights.
  function shownOf(values) {
    const seen = found.space?.visible;
    return seen ? values.map((value, at) => (seen[at] ? value : NaN)) : values;
  }

  function paint() {
    const reaches = shown.map((name) => reachOf(found.layers[name])), scale = ends.one.value;
    const common = [Math.min(...reaches.map(([low]) => low)), Math.max(...reaches.map(([, high]) => high))];
    const queries = tokens[map.queries], keys = tokens[map.keys];
    ends.label.hidden = false;
    while (panels.length > shown.length) panels.pop().figure.remove();
    shown.forEach((name, at) => {
      if (!panels[at]) {
        const one = new MapCanvas(look);
        one.heading = made("h4", {});
        one.figure = made("figure", {}, one.heading, one.canvas);
        area.append(one.figure);
        gestures(one, { point, lock, repaint: drawn, state: () => ({ cell, row }), head: (down, right) => {
          const next = several && gallery.near(map.choices.layer, map.choices.head, down, right);
          if (next) open(next.place);
        } });
        panels[at] = one;
      }
      const one = panels[at], values = found.layers[name], [low] = reaches[at];
      const reach = scale === "own" ? reaches[at] : scale === "common" ? common : [low < 0 ? -1 : 0, 1];
      one.set({ values: shownOf(values), queries, keys, place: view, painter: painterOf(reach, colours.one.value === "root", look()) });
      one.canvas.dataset.layer = name;
      one.heading.textContent = titled(name);
      one.heading.hidden = shown.length < 2;
      one.canvas.setAttribute("aria-label", `${inWords(name, values)} Arrow keys move through the cells, Enter locks a row.`);
    });
    area.style.gridTemplateColumns = shown.length > 1 ? "" : "1fr";
    words.textContent = shown.map((name) => (LAYER_WORDS[name] ? `${titled(name)}: ${LAYER_WORDS[name]}.` : "")).join(" ");
    drawn();
  }

  function drawn() {
    panels.forEach((one) => one.paint(cell, row));
    const one = panels[0];
    line.show({ queries: one.queries, keys: one.keys, values: one.values, row: row ?? cell?.query ?? null, painter: one.painter, layer: shown[0], blocks: inBlocks() });
    read();
    remember();
  }

  function read() {
    if (!cell) { readout.textContent = row === null ? `Point at a cell to read it; click a row for its ${inBlocks() ? "blocks of " : ""}keys` + (found?.space ? " and their intervals." : ".") : `The row of ${called("queries", row)} is locked: arrow keys go through heads and layers; Close, beside its keys, or Escape unlocks.`; return; }
    const at = cell.query * tokens[map.keys].length + cell.key;
    const hidden = found.space?.visible && !found.space.visible[at];
    const values = hidden ? ["hidden from this query"] : [...new Map([...(found.raw ? [["raw", found.raw]] : []), ...Object.entries(found.layers)])].map(([name, matrix]) => `${name} ${written(matrix[at])}`);
    readout.textContent = `${called("queries", cell.query)} → ${called("keys", cell.key)}: ${values.join(", ")}`;
  }

  function point(next) {
    if (next?.query === cell?.query && next?.key === cell?.key) return;
    cell = next && { query: next.query, key: next.key };
    drawn();
  }

  function lock(query) {
    row = row === query ? null : query;
    rows();
    drawn();
    // Where the panel stands below the map it would go unseen.
    if (row !== null && panel.root.getBoundingClientRect().top > window.innerHeight - 80) panel.root.scrollIntoView({ block: "nearest" });
  }

  // The address holds the view: choices by number where they are numbers, else by their place among all.
  const all = Object.fromEntries(names.map((name) => [name, [...new Set(maps.map((one) => one.choices[name]))]]));
  let writing = 0;
  function remember() {
    clearTimeout(writing);
    // Writing the address is slow, and browsers allow it so often only.
    writing = setTimeout(write, 120);
  }

  function write() {
    if (!root.dataset.ready || !root.isConnected) return;
    const state = new URLSearchParams(names.map((name) => [name, typeof map.choices[name] === "number" ? map.choices[name] : `~${all[name].indexOf(map.choices[name])}`]));
    if (shown.join() !== numbers(map).layers[0]) state.set("show", shown.join());
    if (row !== null) state.set("row", row);
    if (view.zoom > 1) state.set("zoom", [view.zoom, view.query, view.key].map((value) => value.toFixed(2)).join());
    address.write(String(state));
  }

  function recall(query = address.read()) {
    if (!query) return false;
    const state = new URLSearchParams(query), wanted = {};
    for (const name of names) {
      const value = state.get(name);
      if (value !== null) wanted[name] = value.startsWith("~") ? all[name][Number(value.slice(1))] : value;
    }
    const target = (map = set(wanted)), queries = tokens[target.queries].length;
    const named = (state.get("show") || "").split(",").filter((name) => numbers(target).layers.includes(name));
    if (named.length) shown = named;
    together.setAttribute("aria-pressed", String(shown.length > 1));
    row = /^\d+$/.test(state.get("row") || "") && Number(state.get("row")) < queries ? Number(state.get("row")) : null;
    const [times, down, right] = (state.get("zoom") || "1,0,0").split(",").map(Number);
    if ([times, down, right].every(Number.isFinite)) Object.assign(view, { zoom: Math.max(1, times), query: down, key: right });
    view.clamp(queries, tokens[target.keys].length);
    return true;
  }

  const ready = (async () => {
    const asked = recall();
    if (!asked) map = set(maps[first].choices);
    await choose();
    if (asked) root.scrollIntoView();
    root.dataset.ready = Math.round(performance.now());
    let width = root.clientWidth;
    new ResizeObserver(() => {
      if (root.clientWidth === width) return;
      width = root.clientWidth;
      requestAnimationFrame(drawn);
    }).observe(root);
  })();
  window.addEventListener("hashchange", () => { if (root.isConnected && recall()) choose(); });
  // More maps of the same texts, and one more layer of a map.
  function add(more) {
    maps.push(...more);
    for (const name of names) all[name] = [...new Set(maps.map((one) => one.choices[name]))];
    filled = "";
    chosen();
    if (several && root.dataset.ready) heads();
  }
  function addLayer(choices, name, packed, differences) {
    const target = maps.find((one) => names.every((other) => one.choices[other] === choices[other]));
    target.layers[name] = packed;
    Object.assign(target.differences, differences);
    cache.delete(target);
    if (target === map) pick(name);
  }
  // The text in the colours of one row, once for each of some layers, or weights, on one scale.
  async function rowOf(place, query, name) {
    const at = mapAt(place), count = tokens[at.keys].length;
    return (await numbers(at).get(name)).slice(query * count, (query + 1) * count);
  }
  // Whether no other weights give the head's output, in any row. A row is fixed where one that sees its keys and more is.
  const fixed = () => { const held = numbers(map); return (held.fixed ??= fixedHead()); };
  async function fixedHead() {
    const space = await numbers(map).space, count = tokens[map.keys].length, queries = [...tokens[map.queries].keys()], seen = space?.visible;
    const within = (query) => query + 1 < queries.length && (!seen || seen.subarray(query * count, (query + 1) * count).every((one, key) => !one || seen[(query + 1) * count + key]));
    for (const query of queries.filter((one) => !within(one))) if (!space || !new RowIntervals(await rowOf(map.choices, query, "raw"), space, query).fixed) return false;
    return true;
  }
  async function strips(place, query, rows) {
    const at = mapAt(place) ?? map, queries = tokens[at.queries], keys = tokens[at.keys], all = await Promise.all(rows.map((one) => rowOf(place, query, one)));
    // On the scale of the first: it has the same shades beside whatever it is compared with, and no weight is darker than its largest.
    const painter = painterOf(reachOf(all[0]), colours.one.value === "root", look());
    return all.map((part, at) => {
      const one = new TextLine((other) => lock(other)), values = new Float32Array(queries.length * keys.length);
      values.set(part, query * keys.length);
      one.show({ queries, keys, values, row: query, painter, layer: rows[at] });
      return one.root;
    });
  }
  const now = () => ({ choices: map.choices, shown, row, count: tokens[map.queries].length });
  const mapAt = (place) => maps.find((one) => Object.entries(place).every(([name, value]) => one.choices[name] === value));
  const show = (query) => { recall(query); return choose(); };
  return { show, pick, rowOf, fixed, redraw: () => { filled = ""; choose(); }, open, ready, add, addLayer, strips, now, lock, has: (place) => several && mapAt(place) !== undefined };
}

// Numbers beside a map are rounded as those of its rows are.
Object.assign(tokenMaps, { written, interval });
