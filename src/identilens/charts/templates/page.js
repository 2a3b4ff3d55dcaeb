"use strict";
// Draws the token maps and charts of a page, in the light or the dark look, again whenever the look changes.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const look = () => data.looks[dark.matches ? "dark" : "light"];
  const drawn = new Map();

  function fail(error) {
    const failure = document.getElementById("failure");
    failure.textContent = `A figure could not be drawn (${error.message || error}). The numbers in the tables are not affected.`;
    failure.hidden = false;
  }
  window.addEventListener("error", fail);
  window.addEventListener("unhandledrejection", (event) => fail(event.reason));

  // The data that a chart names, wherever in it; charts of the same data share it.
  const datasets = (spec) => Object.fromEntries(
    [...JSON.stringify(spec).matchAll(/"name":"(data-[0-9a-f]+)"/g)].map(([, name]) => [name, data.datasets[name]]));
  const rows = (sets) => Object.values(sets).reduce((sum, values) => sum + values.length, 0);

  // What was chosen in a chart's drop-downs outlives the change of its look.
  const chosen = (view, spec) => Object.fromEntries(
    (spec.params || []).filter((param) => param.bind).map((param) => [param.name, view.signal(param.name)]));

  async function draw(id) {
    const spec = data.charts[id], sets = datasets(spec), before = drawn.get(id);
    // A chart without data says nothing.
    if (Object.keys(sets).length && !rows(sets)) { document.getElementById(id).closest("figure").hidden = true; return; }
    const values = before ? chosen(before.view, spec) : {};
    if (before) before.finalize();
    const params = (spec.params || []).map((param) => param.name in values ? { ...param, value: values[param.name] } : param);
    const controls = document.getElementById(`${id}-controls`);
    controls.replaceChildren();
    // The names of a legend stand in two columns where three have no room, and in one where two have none.
    const { config } = look(), width = controls.clientWidth, narrow = width < 480 ? { ...config, legend: { ...config.legend, columns: width < 400 ? 1 : 2 } } : config;
    drawn.set(id, await vegaEmbed(`#${CSS.escape(id)}`, { ...spec, params, datasets: structuredClone(sets) }, {
      // Expressions are interpreted, so that the page needs no right to make code; nothing is offered that would send data.
      mode: "vega-lite", ast: true, actions: false, defaultStyle: false, bind: controls, config: narrow,
      renderer: rows(sets) > 3000 ? "canvas" : "svg", tooltip: { theme: dark.matches ? "dark" : "light" },
    }));
    drawn.get(id).view.addEventListener("click", (event, item) => item && item.datum && openHead(item.datum));
  }

  // A click on a head in a chart opens its map.
  function openHead({ layer, head, kind }) {
    if (layer === undefined || head === undefined) return;
    const place = kind === undefined ? { layer, head } : { kind, layer, head };
    for (const [id, viewer] of viewers) {
      if (!viewer.has(place)) continue;
      viewer.open(place);
      document.getElementById(id).scrollIntoView({ behavior: "smooth" });
      return;
    }
  }

  // Vega comes deflated, and is put in only once the maps stand.
  async function openVega() {
    const packed = document.getElementById("vega").textContent;
    if (!packed) return;
    document.head.append(Object.assign(document.createElement("script"), { textContent: new TextDecoder().decode(await inflated(packed)) }));
  }

  async function drawAll() {
    const now = dark.matches;
    for (const id of Object.keys(data.charts)) {
      await draw(id);
      await new Promise((done) => setTimeout(done));
    }
    document.body.dataset.drawn = now ? "dark" : "light";
  }

  for (const box of document.querySelectorAll(".wide")) {
    if (box.scrollWidth > box.clientWidth) box.before(Object.assign(document.createElement("p"), { className: "soft sideways", textContent: "This table scrolls sideways →" }));
  }
  const viewers = new Map(Object.entries(data.viewers).map(([id, maps]) => [id, tokenMaps(document.getElementById(id), maps, look)]));
  dark.addEventListener("change", () => {
    for (const viewer of viewers.values()) viewer.redraw();
    drawAll();
  });
  await Promise.all([...viewers.values()].map((viewer) => viewer.ready));
  await openVega();
  await drawAll();
})();
