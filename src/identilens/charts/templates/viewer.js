"use strict";
// Maps by query and key token: chosen by selectors, drawn on canvases, read cell by cell by pointer or keyboard.
// tokenMaps(root, {maps, tokens, first}, look) fills `root` and returns {redraw}; look() gives {page, sequential, diverging}.
function tokenMaps(root, { maps, tokens, first }, look) {
  const FONT = 11, LONGEST = 14, LEAST = 4, MOST = 40, BAR = 34, GAP = 6;
  const names = Object.keys(maps[0].choices);
  const cache = new Map();
  let map = maps[0], layers = {}, panels = [], cell = null;

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  function selector(label, options) {
    const select = make("select", { ariaLabel: label });
    select.addEventListener("change", update);
    offer(select, options);
    return { select, label: make("label", {}, label, select) };
  }

  // Fills a selector with [value, name] pairs, keeping what was chosen where it is still there.
  function offer(select, options) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, name]) => make("option", { value, textContent: name })));
    if (options.some(([value]) => String(value) === before)) select.value = before;
  }

  const title = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
  const choices = Object.fromEntries(names.map((name) => [name, selector(title(name), [])]));
  const shown = selector("Show", []);
  const power = selector("Colours", [["root", "by square root"], ["linear", "linear"]]);
  const scale = selector("Scale", [["common", "one for all"], ["own", "one for each"]]);
  const controls = make("div", { className: "controls" });
  controls.append(...[...names.map((name) => choices[name]), shown, power, scale].map((one) => one.label));
  const note = make("p", { className: "soft" });
  const readout = make("p", { className: "readout" });
  readout.setAttribute("aria-live", "polite");
  const area = make("div", { className: "maps" });
  root.replaceChildren(controls, note, area, readout);

  // A selector for each choice; each offers what exists with those before it.
  function choose() {
    let left = maps;
    for (const name of names) {
      const values = [...new Set(left.map((one) => one.choices[name]))];
      offer(choices[name].select, values.map((value) => [value, value]));
      choices[name].label.hidden = new Set(maps.map((one) => one.choices[name])).size < 2;
      left = left.filter((one) => String(one.choices[name]) === choices[name].select.value);
    }
    return left[0];
  }

  function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
  }

  function decode(text, size) {
    const bytes = Uint8Array.from(atob(text), (mark) => mark.charCodeAt(0)), view = new DataView(bytes.buffer);
    return Float32Array.from({ length: bytes.length / size }, (_, at) =>
      size === 4 ? view.getFloat32(4 * at, true) : half(view.getUint16(2 * at, true)));
  }

  function layersOf(one) {
    if (!cache.has(one)) {
      const found = Object.fromEntries(Object.entries(one.layers).map(([name, text]) => [name, decode(text, one.bytes)]));
      for (const [name, [from, what]] of Object.entries(one.differences)) found[name] = found[from].map((value, at) => value - found[what][at]);
      cache.clear();
      cache.set(one, found);
    }
    return cache.get(one);
  }

  const extent = (values) => values.reduce(([low, high], value) => (Number.isNaN(value) ? [low, high] : [Math.min(low, value), Math.max(high, value)]), [0, 0]);

  function number(value) {
    if (Number.isNaN(value)) return "no value";
    const text = value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(3) : String(Number(value.toPrecision(map.bytes === 4 ? 5 : 3)));
    return text.replace("-", "−");
  }

  function shorten(text) {
    const marks = Array.from(text);
    return marks.length <= LONGEST ? text : marks.slice(0, LONGEST - 5).join("") + "…" + marks.slice(-4).join("");
  }

  // Colours along a list of them, for a place in [0, 1].
  function blend(colors, place) {
    const at = Math.min(colors.length - 2, Math.floor(place * (colors.length - 1))), share = place * (colors.length - 1) - at;
    return [1, 3, 5].map((digit) => {
      const [from, to] = [colors[at], colors[at + 1]].map((color) => parseInt(color.slice(digit, digit + 2), 16));
      return Math.round(from + share * (to - from));
    });
  }

  // What colour a value has between low and high; both signs share one reach, so that zero is the middle.
  function painter(low, high) {
    const { sequential, diverging } = look(), signed = low < 0, reach = Math.max(-low, high) || 1;
    const bend = power.select.value === "root" ? Math.sqrt : (share) => share;
    const colors = Array.from({ length: 513 }, (_, at) => blend(signed ? diverging : sequential, at / 512));
    const place = (value) => {
      const share = bend(Math.min(1, Math.abs(value) / reach));
      return signed ? (1 + Math.sign(value) * share) / 2 : share;
    };
    return { from: signed ? -reach : 0, to: reach, color: (value) => colors[Math.round(512 * place(value))] };
  }

  function measure(canvas, queries, keys) {
    const context = canvas.getContext("2d");
    context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    const room = (list) => Math.ceil(Math.max(...list.map((name) => context.measureText(shorten(name)).width))) + GAP;
    const left = Math.min(room(queries), 110), top = Math.min(room(keys), 110), width = canvas.parentElement.clientWidth;
    const wide = Math.max(60, Math.min(width - left - 2, MOST * keys.length));
    const tall = Math.max(LEAST * 4, Math.min(wide * queries.length / keys.length, MOST * queries.length, 1.6 * width));
    return { context, left, top, wide, tall, width, height: top + tall + BAR, step: { x: wide / keys.length, y: tall / queries.length } };
  }

  function paint(panel) {
    const { canvas, paints } = panel, queries = tokens[map.queries], keys = tokens[map.keys];
    const size = (panel.size = measure(canvas, queries, keys)), ratio = window.devicePixelRatio || 1, { page } = look();
    canvas.width = Math.round(size.width * ratio);
    canvas.height = Math.round(size.height * ratio);
    canvas.style.height = `${size.height}px`;
    const context = size.context;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = page.surface;
    context.fillRect(0, 0, size.width, size.height);
    context.imageSmoothingEnabled = false;
    context.drawImage(panel.picture, size.left, size.top, size.wide, size.tall);
    context.strokeStyle = page.line;
    context.strokeRect(size.left, size.top, size.wide, size.tall);
    context.fillStyle = page.ink;
    labels(context, size, queries, keys);
    bar(context, size, paints, page);
    if (cell) mark(context, size, page);
  }

  // The cells as a picture of one pixel each, stretched without smoothing.
  function picture(values, columns, rows, paints) {
    const small = make("canvas", { width: columns, height: rows }), context = small.getContext("2d");
    const image = context.createImageData(columns, rows);
    for (let at = 0; at < values.length; at += 1) {
      if (Number.isNaN(values[at])) continue;
      image.data.set([...paints.color(values[at]), 255], 4 * at);
    }
    context.putImageData(image, 0, 0);
    return small;
  }

  function labels(context, size, queries, keys) {
    const every = (step) => Math.max(1, Math.ceil((FONT + 1) / step));
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let at = 0; at < queries.length; at += every(size.step.y)) context.fillText(shorten(queries[at]), size.left - GAP / 2, size.top + (at + 0.5) * size.step.y);
    context.textAlign = "left";
    for (let at = 0; at < keys.length; at += every(size.step.x)) {
      context.save();
      context.translate(size.left + (at + 0.5) * size.step.x, size.top - GAP / 2);
      context.rotate(-Math.PI / 2);
      context.fillText(shorten(keys[at]), 0, 0);
      context.restore();
    }
  }

  function bar(context, size, { from, to, color }, page) {
    const top = size.top + size.tall + 8, wide = Math.min(160, size.wide);
    for (let at = 0; at < wide; at += 1) {
      context.fillStyle = `rgb(${color(from + (to - from) * (at / (wide - 1)))})`;
      context.fillRect(size.left + at, top, 1.5, 8);
    }
    context.fillStyle = page.soft;
    context.textBaseline = "top";
    [[from, "left", 0], [to, "right", wide]].forEach(([value, align, at]) => {
      context.textAlign = align;
      context.fillText(number(Number(value.toPrecision(2))), size.left + at, top + 11);
    });
  }

  function mark(context, size, page) {
    context.lineWidth = 2;
    context.strokeStyle = page.accent;
    context.strokeRect(size.left + cell.key * size.step.x, size.top + cell.query * size.step.y, size.step.x, size.step.y);
    context.lineWidth = 1;
  }

  function read() {
    readout.classList.toggle("live", cell !== null);
    if (!cell) {
      readout.textContent = "Point at a cell, or move through a map with the arrow keys, to read its numbers.";
      return;
    }
    const queries = tokens[map.queries], keys = tokens[map.keys], at = cell.query * keys.length + cell.key;
    const values = Object.entries(layers).map(([name, matrix]) => `${name} ${number(matrix[at])}`);
    readout.textContent = `${queries[cell.query]} (query ${cell.query}) → ${keys[cell.key]} (key ${cell.key}): ${values.join(", ")}`;
  }

  function point(next) {
    if (next?.query === cell?.query && next?.key === cell?.key) return;
    cell = next;
    read();
    panels.forEach(paint);
  }

  function atPointer(panel, event) {
    const box = panel.canvas.getBoundingClientRect(), { left, top, step } = panel.size;
    const key = Math.floor((event.clientX - box.left - left) / step.x), query = Math.floor((event.clientY - box.top - top) / step.y);
    const inside = key >= 0 && query >= 0 && key < tokens[map.keys].length && query < tokens[map.queries].length;
    return inside ? { query, key } : null;
  }

  function atKey(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const within = (place, count) => Math.max(0, Math.min(count - 1, place));
    const { query, key } = cell ?? { query: 0, key: 0 };
    const [down, right] = cell ? move : [0, 0];
    point({ query: within(query + down, tokens[map.queries].length), key: within(key + right, tokens[map.keys].length) });
  }

  // What a map shows, in words.
  function words(name, values) {
    const keys = tokens[map.keys], queries = tokens[map.queries], most = values.reduce((best, value, at) => (Math.abs(value) > Math.abs(values[best]) ? at : best), 0);
    const [query, key] = [Math.floor(most / keys.length), most % keys.length];
    return `${queries.length} × ${keys.length} tokens; largest ${number(values[most])}, from ${queries[query]} (${query}) to ${keys[key]} (${key}).`;
  }

  function build(name, paints) {
    const canvas = make("canvas", { tabIndex: 0 }), text = words(name, layers[name]);
    canvas.dataset.layer = name;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "token map");
    canvas.setAttribute("aria-label", `${name}: ${text} Arrow keys move through the cells.`);
    const panel = { canvas, paints, picture: picture(layers[name], tokens[map.keys].length, tokens[map.queries].length, paints) };
    canvas.addEventListener("pointermove", (event) => point(atPointer(panel, event)));
    canvas.addEventListener("pointerdown", (event) => point(atPointer(panel, event)));
    canvas.addEventListener("pointerleave", () => point(null));
    canvas.addEventListener("keydown", atKey);
    area.append(make("figure", {}, make("h3", { textContent: title(name) }), canvas, make("p", { className: "soft", textContent: text })));
    return panel;
  }

  function update() {
    map = choose();
    layers = layersOf(map);
    cell = null;
    const all = Object.keys(layers);
    offer(shown.select, [["", all.length > 1 ? "side by side" : all[0]], ...(all.length > 1 ? all.map((name) => [name, `${title(name)} only`]) : [])]);
    shown.label.hidden = scale.label.hidden = all.length < 2;
    note.textContent = map.note;
    note.hidden = !map.note;
    redraw();
  }

  function redraw() {
    const all = shown.select.value ? [shown.select.value] : Object.keys(layers);
    const ends = all.map((name) => extent(layers[name]));
    const common = [Math.min(...ends.map(([low]) => low)), Math.max(...ends.map(([, high]) => high))];
    area.replaceChildren();
    panels = all.map((name, place) => build(name, painter(...(scale.select.value === "own" ? ends[place] : common))));
    panels.forEach(paint);
    read();
  }

  let width = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    requestAnimationFrame(() => panels.forEach(paint));
  }).observe(root);
  for (const name of names) {
    choose();
    choices[name].select.value = maps[first].choices[name];
  }
  update();
  return { redraw };
}
