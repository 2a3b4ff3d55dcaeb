"use strict";
// Attention patterns of all seeds side by side, drawn on canvases; point at a cell to read it.
(() => {
  const { gallery, heads } = Page.data;
  const control = (name) => document.getElementById(`gallery-${name}`);
  const place = control("maps");

  const rgb = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

  function paint(canvas, weights) {
    const n = weights.length, root = control("root").checked, colors = Page.theme();
    const [from, to] = [rgb(colors.surface), rgb(colors.series[0])];
    canvas.width = canvas.height = n;
    const context = canvas.getContext("2d"), image = context.createImageData(n, n);
    weights.forEach((row, i) => row.forEach((value, j) => {
      const share = Math.min(1, root ? Math.sqrt(value) : value), at = 4 * (i * n + j);
      from.forEach((part, channel) => { image.data[at + channel] = part + share * (to[channel] - part); });
      image.data[at + 3] = 255;
    }));
    context.putImageData(image, 0, 0);
  }

  function tile(setting, number, seed, layer, head, index) {
    const figure = document.createElement("figure"), canvas = document.createElement("canvas");
    const caption = document.createElement("figcaption");
    const n = setting.tokens.length, parts = setting.heads.map((_, each) => each);
    const weights = Maps.decode({ id: `patterns-${number}-${seed}`, n_query: n, n_key: n }, parts)[index];
    const facts = heads.find((one) => one.setting === setting.name && one.seed === seed && one.layer === layer && one.head === head);
    caption.textContent = `Seed ${seed}` + (facts ? `: ${Page.fixed(facts.stack_weight, 2)} on the stack's top` : "");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Attention of seed ${seed}, layer ${layer}, head ${head}`);
    canvas.addEventListener("mousemove", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.min(n - 1, Math.floor(((event.clientY - box.top) / box.height) * n));
      const column = Math.min(n - 1, Math.floor(((event.clientX - box.left) / box.width) * n));
      const text = `${setting.tokens[row]} (place ${row}) → ${setting.tokens[column]} (place ${column}): ${Page.number(weights[row][column])}`;
      Page.showTooltip(event, text, `seed ${seed}`);
      control("cell").textContent = `Seed ${seed}, ${text}`;
    });
    canvas.addEventListener("mouseleave", Page.hideTooltip);
    figure.append(canvas, caption);
    paint(canvas, weights);
    return figure;
  }

  function show() {
    const number = Number(control("setting").value), setting = gallery.settings[number];
    Page.offer(control("head"), setting.heads.map(([layer, head], index) => [index, `layer ${layer}, head ${head}`]));
    const index = Number(control("head").value), [layer, head] = setting.heads[index];
    place.replaceChildren(...setting.seeds.map((seed) => tile(setting, number, seed, layer, head, index)));
    control("note").textContent = `Prefix: ${setting.tokens.join(" ")}. White is 0, full colour 1, on one scale for all. Point at a square to read a weight.`;
  }

  Page.offer(control("setting"), gallery.settings.map((setting, number) => [number, setting.name]));
  // The last layer first: it is the one that can look like a stack.
  const last = () => { const heads = gallery.settings[Number(control("setting").value)].heads; Page.offer(control("head"), heads.map(([layer, head], index) => [index, `layer ${layer}, head ${head}`])); control("head").value = heads.length - 1; };
  last();
  control("setting").addEventListener("change", () => { last(); show(); });
  control("head").addEventListener("change", show);
  control("root").addEventListener("change", show);
  Page.onDraw(show);
})();
