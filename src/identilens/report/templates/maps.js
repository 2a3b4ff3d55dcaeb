"use strict";
// Matrices of one head side by side, tokens on both axes: zoomed together, read cell by cell.
const Maps = (() => {
  const labelPixels = 12, letterPixels = 6.6, longest = 14, barPixels = 18;

  function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
  }

  // Reads the matrices that one element of the page holds, one after the other, in half precision.
  function decode(map, parts) {
    const text = atob(document.getElementById(map.id).textContent);
    const size = map.n_query * map.n_key, found = {};
    parts.forEach((part, place) => {
      found[part] = Array.from({ length: map.n_query }, (_, row) => Float32Array.from({ length: map.n_key }, (_, column) => {
        const at = 2 * (place * size + row * map.n_key + column);
        return half(text.charCodeAt(at) | (text.charCodeAt(at + 1) << 8));
      }));
    });
    return found;
  }

  const blend = (one, other, share) => [1, 3, 5].map((at) => {
    const [from, to] = [one, other].map((color) => parseInt(color.slice(at, at + 2), 16));
    return Math.round(from + share * (to - from)).toString(16).padStart(2, "0");
  }).reduce((text, pair) => text + pair, "#");

  // The same colours along the square root of the size, so that small values show.
  function emphasised(scale) {
    const at = (place) => {
      const next = Math.max(1, scale.findIndex(([stop]) => stop >= place));
      const [[from, one], [to, other]] = [scale[next - 1], scale[next]];
      return blend(one, other, (place - from) / (to - from));
    };
    return Array.from({ length: 65 }, (_, index) => {
      const signed = index / 32 - 1;
      return [index / 64, at((1 + Math.sign(signed) * Math.sqrt(Math.abs(signed))) / 2)];
    });
  }

  const largest = (matrix) => matrix.reduce((most, row) => row.reduce((all, value) => Math.max(all, Math.abs(value)), most), 0);

  // The panels whose elements' ids begin with a prefix. `show` draws {queries, keys, matrices by part}.
  function panels(prefix, parts) {
    const control = (name) => document.getElementById(`${prefix}-${name}`);
    let view = null;

    function ticks(names, from, to, pixels) {
      const first = Math.max(0, Math.round(from)), last = Math.min(names.length - 1, Math.round(to));
      const step = Math.max(1, Math.ceil((last - first + 1) * labelPixels / pixels));
      const tickvals = names.map((_, index) => index).filter((index) => index >= first && index <= last && index % step === 0);
      return { step, ticks: { tickmode: "array", tickvals, ticktext: tickvals.map((index) => Page.escape(Page.shorten(names[index], longest))) } };
    }

    // Letters of East Asian scripts take the room of two.
    const widthOf = (name) => Array.from(Page.shorten(name, longest)).reduce((sum, mark) => sum + (mark >= "\u1100" ? 1.8 : 1), 0);

    // Room for labels and title beside the map, the same in all three panels.
    function shape(element, { queries, keys }) {
      const room = (names) => 34 + letterPixels * Math.max(...names.map(widthOf));
      const margin = { l: room(queries), r: 14, t: room(keys) + barPixels, b: 52 };
      const wide = Math.max(80, element.clientWidth - margin.l - margin.r);
      const cell = Math.min(wide / keys.length, Math.max(44, 160 / keys.length));
      margin.r += wide - cell * keys.length;
      const tall = Math.max(40, Math.min(14 * queries.length, 0.6 * wide), Math.min(cell * queries.length, 2.2 * wide));
      return { margin, wide: cell * keys.length, tall, height: tall + margin.t + margin.b };
    }

    function drawPart(part, limit) {
      const element = control(part), colors = Page.theme(), size = shape(element, view);
      const { queries, keys, zoom } = view;
      const across = ticks(keys, zoom.x[0] + 0.5, zoom.x[1] - 0.5, size.wide);
      const down = ticks(queries, zoom.y[1] + 0.5, zoom.y[0] - 0.5, size.tall);
      view.step = Math.max(across.step, down.step);
      const bounds = (names) => ({ minallowed: -0.5, maxallowed: names.length - 0.5 });
      const trace = {
        type: "heatmap", z: view.matrices[part], zmin: -limit, zmax: limit, colorscale: control("scale").value === "root" ? emphasised(colors.diverging) : colors.diverging, hoverinfo: "none",
        colorbar: { orientation: "h", thickness: 10, outlinewidth: 0, len: 1, x: 0.5, y: 0, yanchor: "top", ypad: 12, xpad: 0, tickfont: { size: 11 },
          tickvals: [-limit, -limit / 2, 0, limit / 2, limit], ticktext: [-limit, -limit / 2, 0, limit / 2, limit].map((value) => Page.number(value, 2)) },
      };
      Page.draw(element, [trace], {
        height: size.height, margin: size.margin,
        xaxis: Page.axis("Key token", { side: "top", range: zoom.x.slice(), tickangle: -90, showgrid: false, ...bounds(keys), ...across.ticks }),
        yaxis: Page.axis(size.tall < 80 ? "Query" : "Query token", { range: zoom.y.slice(), showgrid: false, ...bounds(queries), ...down.ticks }),
      }, { doubleClick: false, modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d"]] });
      if (!element.dataset.bound) bind(element, part);
    }

    function bind(element, part) {
      element.dataset.bound = "yes";
      element.on("plotly_hover", ({ points: [point], event }) => {
        const value = Page.number(view.matrices[part][point.y][point.x]);
        Page.showTooltip(event, `${view.queries[point.y]} → ${view.keys[point.x]}: ${value}`, `${part}, query ${point.y}, key ${point.x}`);
      });
      element.on("plotly_unhover", Page.hideTooltip);
      element.on("plotly_click", ({ points: [point] }) => {
        control("query").value = point.y;
        control("key").value = point.x;
        readCell();
      });
      element.on("plotly_relayout", (change) => {
        if (!Object.keys(change).some((name) => name.includes("axis.range"))) return;
        view.zoom = { x: element.layout.xaxis.range.slice(), y: element.layout.yaxis.range.slice() };
        drawMaps();
      });
      element.on("plotly_doubleclick", showWhole);
    }

    const wholeMap = () => ({ x: [-0.5, view.keys.length - 0.5], y: [view.queries.length - 0.5, -0.5] });

    function showWhole() {
      view.zoom = wholeMap();
      drawMaps();
    }

    function drawMaps() {
      const own = Object.fromEntries(parts.map((part) => [part, largest(view.matrices[part]) || 1]));
      const common = Math.max(...Object.values(own));
      const shared = control("scale").value !== "own";
      for (const part of parts) drawPart(part, shared ? common : own[part]);
      const scale = shared ? `One colour scale for the three maps, from −${Page.number(common)} to ${Page.number(common)}${control("scale").value === "root" ? ", colours along the square root of the size" : ""}`
        : "Each map has its own colour scale, so colours cannot be compared between maps";
      control("whole").disabled = JSON.stringify(view.zoom) === JSON.stringify(wholeMap());
      control("note").textContent = `${scale}; zero is blank.`
        + (view.step > 1 ? ` Every ${view.step}${["", "st", "nd", "rd"][view.step] ?? "th"} token is labelled` : " Every token is labelled")
        + "; drag over a map to zoom into all three, double-click to see the whole. Click a cell to read its three values below.";
    }

    function readCell() {
      const row = Number(control("query").value), column = Number(control("key").value);
      const values = parts.map((part) => `${part} ${Page.number(view.matrices[part][row][column])}`);
      control("cell").textContent = `${view.queries[row]} → ${view.keys[column]}: ${values.join(", ")}`;
    }

    function show(wanted) {
      view = { ...wanted, step: 1 };
      view.zoom = wholeMap();
      const listed = (names) => names.map((name, index) => [index, `${index}: ${Page.shorten(name, 40)}`]);
      Page.offer(control("query"), listed(view.queries));
      Page.offer(control("key"), listed(view.keys));
      readCell();
      drawMaps();
    }

    for (const name of ["query", "key"]) control(name).addEventListener("change", readCell);
    control("scale").addEventListener("change", drawMaps);
    control("whole").addEventListener("click", showWhole);
    Page.onDraw(() => { if (view) drawMaps(); });
    return { show };
  }

  return { decode, panels };
})();
