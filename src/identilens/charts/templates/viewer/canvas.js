// One map on a canvas: cells as colours, tokens on both axes at every zoom, a cursor and a locked row.
const FONT = 11, LABEL = 14, GAP = 6, BAR = 30, BIG = 104;

function made(tag, properties = {}, ...children) {
  const { data, ...rest } = properties, element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

function shortened(text, longest = LABEL) {
  const marks = Array.from(text);
  return marks.length <= longest ? text : `${marks.slice(0, longest - 5).join("")}…${marks.slice(-4).join("")}`;
}

// A proven end is rounded outward, to side −1 or 1.
function written(value, digits = 3, side = 0) {
  if (Number.isNaN(value)) return "not known";
  const size = Math.abs(value), tiny = value !== 0 && size < 0.0005, power = Math.floor(Math.log10(size));
  const form = (one) => (tiny ? one.toExponential(0) : String(Number(size < 1 ? one.toFixed(digits) : one.toPrecision(digits))));
  const nearest = Number(form(value)), inward = side * (value - nearest) > 1e-12 * Math.max(1, size);
  const unit = 10 ** (tiny ? power : size < 1 ? -digits : power + 1 - digits);
  return form(inward ? nearest + side * unit : value).replaceAll("-", "−");
}

const interval = (lo, hi, side = 1) => `${written(lo, 3, -side)} to ${written(hi, 3, side)}`;

const titled = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

function reachOf(values) {
  let low = 0, high = 0;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

// Which colour a value has: the sequential ramp from zero up, the warm half of the diverging one below.
function painterOf([low, high], root, { sequential, diverging }) {
  const reach = Math.max(-low, high) || 1, STEPS = 512, warm = diverging.slice(2);
  const blend = (colors, place) => {
    const at = Math.min(colors.length - 2, Math.floor(place * (colors.length - 1))), share = place * (colors.length - 1) - at;
    return [1, 3, 5].map((digit) => {
      const [from, to] = [colors[at], colors[at + 1]].map((color) => parseInt(color.slice(digit, digit + 2), 16));
      return Math.round(from + share * (to - from));
    });
  };
  const ramp = [sequential, warm].flatMap((colors) => Array.from({ length: STEPS + 1 }, (_, at) => blend(colors, at / STEPS)));
  // Bytes of an opaque pixel, in the order of this machine.
  const pixels = new Uint32Array(Uint8Array.from(ramp.flatMap((parts) => [...parts, 255])).buffer);
  const place = (value) => {
    const share = Math.min(1, Math.abs(value) / reach);
    return Math.round(STEPS * (root ? Math.sqrt(share) : share)) + (value < 0 ? STEPS + 1 : 0);
  };
  const color = (value) => ramp[place(value)];
  return { from: low < 0 ? -reach : 0, to: reach, pixel: (value) => pixels[place(value)], css: (value) => `rgb(${color(value).join()})`, dark: (value) => color(value).reduce((sum, part, at) => sum + part * [0.299, 0.587, 0.114][at], 0) < 140 };
}

// Cells as a picture of at most `most` pixels a side, the largest of those that share a pixel.
function pictureOf(values, queries, keys, painter, most = Infinity) {
  const high = Math.min(queries, most), wide = Math.min(keys, most), canvas = made("canvas", { width: wide, height: high });
  const context = canvas.getContext("2d"), image = context.createImageData(wide, high), largest = new Float32Array(wide * high).fill(NaN);
  for (let query = 0; query < queries; query += 1) {
    const line = wide * Math.floor((query * high) / queries);
    for (let key = 0; key < keys; key += 1) {
      const value = values[query * keys + key], at = line + (wide === keys ? key : Math.floor((key * wide) / keys));
      if (!(Math.abs(value) <= Math.abs(largest[at]))) { if (!Number.isNaN(value)) largest[at] = value; }
    }
  }
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < largest.length; at += 1) if (!Number.isNaN(largest[at])) pixels[at] = painter.pixel(largest[at]);
  context.putImageData(image, 0, 0);
  return canvas;
}

// The part of a map that is looked at, shared by maps side by side: first cell and how many times larger than the whole.
class Window {
  constructor() { this.whole(); }
  whole() { this.zoom = 1; this.key = 0; this.query = 0; }
  clamp(queries, keys) {
    this.key = Math.max(0, Math.min(keys - keys / this.zoom, this.key));
    this.query = Math.max(0, Math.min(queries - queries / this.zoom, this.query));
  }
  // Zooms so that what lies under a place (shares of the map's width and height) stays there.
  by(factor, queries, keys, across = 0.5, down = 0.5) {
    const before = this.zoom;
    this.zoom = Math.max(1, Math.min(Math.max(1, Math.max(queries, keys) / 6), this.zoom * factor));
    this.key += across * keys * (1 / before - 1 / this.zoom);
    this.query += down * queries * (1 / before - 1 / this.zoom);
    this.clamp(queries, keys);
    return this.zoom !== before;
  }
  show({ query, key }, queries, keys) {
    const wide = keys / this.zoom, tall = queries / this.zoom;
    if (key < this.key || key + 1 > this.key + wide) this.key = key - wide / 2;
    if (query < this.query || query + 1 > this.query + tall) this.query = query - tall / 2;
    this.clamp(queries, keys);
  }
}

class MapCanvas {
  constructor(look) {
    this.look = look;
    this.canvas = made("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "token map");
  }

  // What is drawn: values by query and key, tokens, painter; `place` is the shared window.
  set({ values, queries, keys, painter, place }) {
    Object.assign(this, { values, queries, keys, painter, place });
    this.picture = pictureOf(values, queries.length, keys.length, painter);
  }

  measure(across) {
    const context = this.canvas.getContext("2d"), { queries, keys } = this;
    context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    const room = (names, most) => Math.min(most, Math.ceil(Math.max(...names.map((name) => context.measureText(shortened(name)).width))) + GAP);
    const left = room(queries, Math.min(110, 0.26 * across)), top = room(keys, 96), wide = Math.max(60, Math.min(across - left - 2, BIG * keys.length));
    const square = (wide * queries.length) / keys.length;
    // The whole map fits into a window where its cells need not become flatter than three to five.
    const tall = Math.max(Math.min(square, 0.6 * square > window.innerHeight - 150 ? 0.6 * square : Math.max(360, window.innerHeight - 150)), 40);
    this.size = { left, top, wide, tall: Math.min(tall, 2.2 * window.innerHeight), across, high: top + Math.min(tall, 2.2 * window.innerHeight) + BAR };
  }

  get step() {
    return { x: (this.size.wide * this.place.zoom) / this.keys.length, y: (this.size.tall * this.place.zoom) / this.queries.length };
  }

  paint(cell, row) {
    const { canvas, place, picture } = this, page = this.look().page, ratio = Math.min(3, window.devicePixelRatio || 1);
    this.measure(canvas.parentElement.clientWidth);
    const { left, top, wide, tall, across, high } = this.size, context = canvas.getContext("2d"), step = this.step;
    canvas.width = Math.round(across * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.height = `${high}px`;
    canvas.style.touchAction = place.zoom > 1 ? "none" : "pan-x pan-y";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = page.surface;
    context.fillRect(0, 0, across, high);
    context.save();
    context.beginPath();
    context.rect(left, top, wide, tall);
    context.clip();
    context.fillStyle = page.raised;
    context.fillRect(left, top, wide, tall);
    context.imageSmoothingEnabled = step.x < 1 || step.y < 1;
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, place.key, place.query, this.keys.length / place.zoom, this.queries.length / place.zoom, left, top, wide, tall);
    if (step.x >= 40 && step.y >= 16) this.numbers(context);
    this.mark(context, cell, row, page);
    context.restore();
    context.strokeStyle = page.line;
    context.strokeRect(left, top, wide, tall);
    this.labels(context, cell, row, page);
    this.legend(context, page);
  }

  visible() {
    const { place, queries, keys } = this;
    const range = (from, count, all) => Array.from({ length: Math.min(all, Math.ceil(from + count)) - Math.floor(from) }, (_, at) => Math.floor(from) + at);
    return { queries: range(place.query, queries.length / place.zoom, queries.length), keys: range(place.key, keys.length / place.zoom, keys.length) };
  }

  at(query, key) {
    const { left, top } = this.size, { x, y } = this.step;
    return [left + (key - this.place.key) * x, top + (query - this.place.query) * y];
  }

  numbers(context) {
    const { x, y } = this.step, { queries, keys } = this.visible();
    context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const query of queries) {
      for (const key of keys) {
        const value = this.values[query * this.keys.length + key], [across, down] = this.at(query, key);
        if (Number.isNaN(value)) continue;
        context.fillStyle = this.painter.dark(value) ? "#ffffff" : "#14181c";
        context.fillText(Math.abs(value) < 0.005 ? "0" : value.toFixed(2).replace("0.", ".").replace("-", "−"), across + x / 2, down + y / 2);
      }
    }
  }

  mark(context, cell, row, page) {
    const { x, y } = this.step, { left, top, wide, tall } = this.size;
    context.strokeStyle = page.accent;
    if (row !== null) {
      context.lineWidth = 2;
      context.strokeRect(left + 1, this.at(row, 0)[1] - 1, wide - 2, y + 2);
    }
    if (cell) {
      const [across, down] = this.at(cell.query, cell.key);
      context.lineWidth = 1;
      context.globalAlpha = 0.55;
      context.strokeRect(left, down, wide, y);
      context.strokeRect(across, top, x, tall);
      context.globalAlpha = 1;
      context.lineWidth = 2;
      context.strokeRect(across - 1, down - 1, Math.max(3, x + 2), Math.max(3, y + 2));
    }
    context.lineWidth = 1;
  }

  labels(context, cell, row, page) {
    const { left, top, wide, tall } = this.size, { x, y } = this.step, shown = this.visible(), font = getComputedStyle(document.body).fontFamily;
    const every = (step) => Math.max(1, Math.ceil((FONT + 1.5) / step));
    const strong = { query: new Set([row, cell?.query]), key: new Set([cell?.key]) };
    context.textBaseline = "middle";
    const draw = (side, at, name, bold) => {
      const [across, down] = side === "query" ? [left - GAP / 2, this.at(at, 0)[1] + y / 2] : [this.at(0, at)[0] + x / 2, top - GAP / 2];
      if (side === "query" ? down < top - 1 || down > top + tall + 1 : across < left - 1 || across > left + wide + 1) return;
      context.save();
      context.translate(across, down);
      if (side === "key") context.rotate(-Math.PI / 2);
      context.textAlign = side === "query" ? "right" : "left";
      context.font = `${bold ? "bold " : ""}${FONT}px ${font}`;
      const size = context.measureText(shortened(name)).width, most = (side === "query" ? left : top) - GAP / 2;
      if (bold) {
        context.fillStyle = page.surface;
        context.fillRect(side === "query" ? -size - 3 : -1, -FONT, size + 4, 2 * FONT);
      }
      context.fillStyle = bold ? page.accent : page.ink;
      context.fillText(shortened(name), 0, 0, most);
      context.restore();
    };
    for (const [side, names, step] of [["query", this.queries, y], ["key", this.keys, x]]) {
      const held = shown[side === "query" ? "queries" : "keys"], by = every(step);
      held.filter((at) => at % by === 0).forEach((at) => draw(side, at, names[at], false));
      held.filter((at) => strong[side].has(at)).forEach((at) => draw(side, at, names[at], true));
    }
  }

  legend(context, page) {
    const { left, top, wide, tall } = this.size, { from, to, css } = this.painter, down = top + tall + 8, size = Math.min(180, wide);
    for (let at = 0; at < size; at += 1) {
      context.fillStyle = css(from + ((to - from) * at) / (size - 1));
      context.fillRect(left + at, down, 1.5, 8);
    }
    context.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = page.soft;
    context.textBaseline = "top";
    const ends = from < 0 ? [[from, "left", 0], [0, "center", size / 2], [to, "right", size]] : [[0, "left", 0], [to, "right", size]];
    ends.forEach(([value, align, at]) => { context.textAlign = align; context.fillText(written(value, 2), left + at, down + 11); });
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), { left, top, wide, tall } = this.size, across = event.clientX - box.left - left, down = event.clientY - box.top - top;
    if (across < 0 || down < 0 || across >= wide || down >= tall) return null;
    return { key: Math.floor(this.place.key + across / this.step.x), query: Math.floor(this.place.query + down / this.step.y), across: across / wide, down: down / tall };
  }
}
