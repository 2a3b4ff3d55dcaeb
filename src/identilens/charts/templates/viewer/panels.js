// What stands around a map: the keys of one row with their intervals, the text in the colours of a layer, all heads.
// On a phone, what stands below the list is near.
const KEYS_SHOWN = window.matchMedia("(max-width: 40rem)").matches ? 8 : 24, SLICE = 12, BEYOND = 4;

// A token in a sentence, without the mark of the space before it.
const bare = (name) => name.replace(/^[Ġ▁␣](?=.)/u, "");

// What each verdict says, in the order of the rules.
const HOLDS = "in all alternatives it stays within a tenth of its value", MOVES = "in some alternative it moves by more than a tenth of its value", LARGE = "its key adds at least as much as keys add on average, by norm", SMALL = "its key adds less than keys add on average, by norm";
const MEANT = [`${HOLDS}; ${LARGE}.`, `${HOLDS}; ${SMALL}.`, `${MOVES}; ${LARGE}.`, `${MOVES}; ${SMALL}.`, `${SMALL}, and no alternative gives it half of what each key has if attention is even.`];

// Does steps of work while the page stays quick; `step` returns false once there is none left.
function working(step) {
  let stopped = false;
  const go = () => {
    const until = performance.now() + SLICE;
    while (!stopped && performance.now() < until) if (step() === false) return;
    if (!stopped) setTimeout(go);
  };
  setTimeout(go);
  return () => { stopped = true; };
}

class RowPanel {
  // With `pick`, every key is a button, for those who listen to clicks on rows.
  constructor(close, pick, leave) {
    this.pick = pick;
    this.title = made("h3", {});
    this.note = made("p", { className: "soft" });
    this.order = made("select", { ariaLabel: "Order of keys" }, made("option", { value: "weight", textContent: "largest first" }), made("option", { value: "place", textContent: "by position" }));
    this.more = made("button", { type: "button" });
    const shut = made("button", { type: "button", textContent: "Close", title: "Escape" });
    shut.addEventListener("click", close);
    this.list = made("tbody", {});
    this.heads = ["Key", "Range", "Weight", "Share of norm"].map((name) => made("th", { scope: "col", textContent: name }));
    const table = made("table", { className: "row-keys" }, made("thead", {}, made("tr", {}, ...this.heads)), this.list);
    this.legend = made("details", {}, made("summary", { textContent: "What the marks say" }), made("ul", {}));
    this.root = made("aside", { className: "viewer-row", hidden: true }, made("div", { className: "viewer-row-head" }, this.title, shut), this.note, made("div", { className: "viewer-bar" }, this.order, this.more), this.legend, table);
    this.root.setAttribute("aria-label", "Keys of the chosen row");
    this.all = false;
    this.order.addEventListener("change", () => this.again());
    this.more.addEventListener("click", () => { this.all = !this.all; this.again(); });
    // Of the keys one is a stop of the Tab key; arrows go through them.
    this.list.addEventListener("keydown", (event) => {
      const all = [...this.list.querySelectorAll(".key")], at = all.indexOf(event.target), next = all[{ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key]];
      if (at < 0 || !next) return;
      event.preventDefault();
      next.focus();
    });
    this.root.addEventListener("keydown", ({ key, target }) => { if (key === "Escape" && target.tagName !== "SELECT") leave(); });
    this.list.addEventListener("focusin", ({ target }) => { if (target.matches(".key")) this.list.querySelectorAll(".key").forEach((one) => (one.tabIndex = one === target ? 0 : -1)); });
    this.stop = () => {};
  }

  hide() { this.stop(); this.root.hidden = true; }

  again() { this.show(this.shown); }

  // One row: its query, tokens of the keys, values of the layer shown, and where known weights, shares, programs, rules.
  // `waiting` says what becomes of programs that are proven elsewhere.
  show(shown) {
    this.stop();
    this.shown = shown;
    this.root.hidden = false;
    const { query, name, keys, values, layer, weights, shares, intervals, waiting, blocks } = shown, effect = ![undefined, "head", "layer"].includes(intervals?.outcome);
    this.title.textContent = blocks ? `Block of queries from ${name}` : `${bare(name)} (query ${query})`;
    [blocks ? "Block of keys" : "Key", intervals || waiting ? "Range" : "", blocks ? "Attention" : weights ? "Weight" : "Value", effect ? "Share of effect" : "Share of norm"].forEach((words, at) => (this.heads[at].textContent = words));
    this.heads[3].hidden = !shares;
    this.heads[3].title = effect ? "Share of the key in what all keys do to the model's answer, to first order" : "Share of the key in what all keys add to the head's output, by vector length";
    const by = weights || values, seen = intervals ? intervals.seen : [...keys.keys()].filter((key) => !Number.isNaN(by[key]));
    const order = [...seen].sort((a, b) => (this.order.value === "place" ? a - b : Math.abs(by[b]) - Math.abs(by[a])));
    const some = this.all ? order : order.slice(0, KEYS_SHOWN);
    this.more.hidden = order.length <= KEYS_SHOWN;
    this.more.textContent = this.all ? `Show ${KEYS_SHOWN} keys` : `Show all ${order.length} ${blocks ? "blocks" : "keys"}`;
    this.root.dataset.proven = String(Boolean(intervals?.proven));
    const least = intervals?.proven ? seen.reduce((sum, key) => sum + intervals.lower(key), 0) : 0;
    const exact = intervals?.exact, most = exact ? seen.reduce((sum, key) => sum + exact.lower[key], 0) : least;
    const few = least > 0.9995 && intervals.kept.includes("exactly") ? " That is usual where a row sees no more keys than the head's values have dimensions: see what is left when the output may change a little." : "";
    this.note.textContent = intervals?.proven
      ? `Dot or diamond: the weight. Bar: all values that it can take, if the other weights move to match (square-root scale), while these stay: the row's sum, and ${intervals.kept}. ${intervals.kept.includes("first order") ? "" : "Proven. "}${least < 1e-6 ? "None" : least > 1 - 1e-6 ? "All" : `At least ${Math.floor(1000 * least + 1e-6) / 10} %`} of the row's attention is certain to stay on its keys${least === most ? "" : ` (${Math.floor(1000 * most + 1e-6) / 10} % while they stay exactly)`}.${few}`
      : intervals
      ? "Dot or diamond: the weight. Bar: all values that it can take, if the other weights move to match, while the head's output and the sum of the row stay as they are (square-root scale), worked out in this page from rounded weights: about right, and without a verdict near a boundary. The command certify proves them."
      : waiting
      ? waiting
      : blocks
      ? "What a query of this block puts on all keys of each block together, on average. A block is called by the place and the text of its first token. For weights and ranges of single tokens, certify a row of this text."
      : `Values of the layer ${layer} (square-root scale).`;
    if (weights && layer !== "raw") this.note.textContent += ` These are the model's own weights (raw). The map shows another layer, ${layer}: its value stands below each weight.`;
    const rows = some.map((key) => this.line(key, shown));
    this.list.replaceChildren(...rows.map((one) => one.element));
    this.list.querySelectorAll(".key").forEach((one, at) => (one.tabIndex = at ? -1 : 0));
    this.legend.hidden = !intervals;
    if (intervals) this.legend.lastChild.replaceChildren(...shown.rules.verdicts.map(([sign, words], at) => made("li", { textContent: `${sign} ${words}: ${MEANT[at]}` })));
    this.list.dispatchEvent(new CustomEvent("keys", { bubbles: true }));
    const scale = () => {
      const [first, second] = rows.map((one) => Math.abs(one.hi ?? one.value)).sort((a, b) => b - a);
      // One dominant key would squeeze all others: it stands at the end, beyond the scale.
      const most = (first > BEYOND * second ? second : first) || 1;
      rows.forEach((one) => one.draw((value) => 100 * Math.sqrt(Math.min(1, Math.abs(value) / most)), Math.abs(one.lo ?? one.value) > most));
    };
    scale();
    this.root.dataset.ready = String(!intervals);
    if (!intervals) return;
    let next = 0;
    this.stop = working(() => {
      if (next === rows.length) { scale(); this.root.dataset.ready = "true"; return false; }
      const one = rows[next++], lo = intervals.lower(one.key), hi = intervals.upper(one.key);
      const verdict = (intervals.proven ? verdictOf : verdictAbout)(one.value, lo, hi, shares[one.key], seen.length, shown.rules);
      one.hold(lo, hi, verdict, intervals.proven ? "" : "about ", exact && [exact.lower[one.key], exact.upper[one.key]]);
      return true;
    });
  }

  line(key, { keys, values, layer, weights, shares, rules, blocks }) {
    const value = (weights || values)[key], dot = made("i", { className: "dot" }), span = made("i", { className: "span" });
    const number = made("td", { className: "number", textContent: written(value) }), verdict = made("td", { hidden: !shares });
    if (weights && layer !== "raw") number.append(made("br", {}), made("small", { textContent: `${layer}: ${Number.isNaN(values[key]) ? "…" : written(values[key])}` }));
    const bar = made("td", { className: "bar" }, made("div", {}, span, dot));
    if (shares) verdict.textContent = `${(100 * shares[key]).toFixed(shares[key] < 0.0995 ? 1 : 0)} %`;
    const name = shortened(bare(keys[key]), 18), picked = this.pick ? made("button", { type: "button", className: "key", textContent: name }) : name;
    const named = made("th", { scope: "row", title: `${keys[key]} (key ${key})` }, picked, made("small", { textContent: blocks ? "" : ` ${key}` }));
    const element = made("tr", { data: { key } }, named, bar, number, verdict);
    const one = { key, value, element };
    one.draw = (place, beyond) => {
      element.classList.toggle("beyond", beyond);
      bar.title = beyond ? "beyond the scale of the other keys" : "";
      dot.style.left = `${place(value)}%`;
      if (one.hi === undefined) return;
      span.style.left = `${place(one.lo)}%`;
      span.style.width = `${Math.max(0.6, place(one.hi) - place(one.lo))}%`;
    };
    one.hold = (lo, hi, at, about, exact) => {
      if (Number.isNaN(lo) || Number.isNaN(hi)) return;
      Object.assign(one, { lo, hi });
      const [sign, words] = at === null ? ["", "no verdict"] : rules.verdicts[at];
      Object.assign(element.dataset, { lo, hi, weight: value, verdict: words });
      if (at !== null) element.classList.add(at < 2 ? "held" : at < 4 ? "free" : "negligible");
      const range = (from, to) => (to - from < Math.min(0.0005, 0.02 * value) ? "fixed" : interval(from, to, about ? 0 : 1));
      number.append(made("br", {}), made("small", { textContent: about + range(lo, hi) }));
      if (exact && (exact[0] !== lo || exact[1] !== hi)) number.append(made("br", {}), made("small", { className: "soft", textContent: `exactly ${range(...exact)}` }));
      const said = made("small", { className: "verdict", textContent: `${sign} ${words}`.trim() });
      if (at === null) said.title = "A number lies too near a boundary for this page's rounded data; the command certify decides.";
      verdict.append(made("br", {}), said);
    };
    return one;
  }
}

// Tokens as they are read: marks of spaces and of parts of words (␣, in older runs Ġ and ▁; …, ##) become spaces, or none, before the token.
function wordsOf(names) {
  const marked = names.some((name) => /^[Ġ▁␣]./u.test(name));
  return names.map((name, at) => {
    const first = at === 0 || /^(<.*>|\[.*\])$/u.test(names[at - 1]), part = !first && (marked ? !/^[Ġ▁␣]/u.test(name) : /^(##|…)./u.test(name));
    return { before: part ? "\u200b" : " ", name: part ? "part" : "", text: name.replace(marked ? /^[Ġ▁␣](?=.)/u : /^(##|…)(?=.)/u, "") };
  });
}

// The text with its tokens in the colours of a layer; a click on a query locks its row.
class TextLine {
  constructor(lock) {
    this.root = made("div", { className: "viewer-text" });
    this.root.addEventListener("click", (event) => { const query = event.target.dataset.query; if (query !== undefined) lock(Number(query)); });
  }

  show({ queries, keys, values, row, painter, layer, blocks }) {
    const one = blocks ? "block" : "token", whose = blocks ? "the block from " : "";
    const same = queries.length === keys.length && queries.every((name, at) => name === keys[at]);
    const means = (key) => { let sum = 0; for (let query = 0; query < queries.length; query += 1) sum += values[query * keys.length + key] || 0; return sum / queries.length; };
    const value = (key) => (row === null ? means(key) : values[row * keys.length + key]);
    const words = wordsOf(keys), spans = keys.map((name, key) => {
      const held = value(key), span = made("span", { textContent: words[key].text, className: words[key].name, title: `${name} (key ${key}): ${Number.isNaN(held) ? "hidden or not known yet" : written(held)}` });
      if (same) span.dataset.query = key;
      if (same && key === row) span.classList.add("chosen");
      if (!Number.isNaN(held)) { span.style.background = painter.css(held); span.style.color = painter.dark(held) ? "#ffffff" : "#14181c"; }
      return span;
    });
    const said = row === null ? `What each ${one} receives on average (${layer})` : `What ${whose}${bare(queries[row])}${blocks ? "" : ` (query ${row})`} takes from each ${one} (${layer})`;
    const lines = [made("p", { className: "soft", textContent: said }), made("p", { className: "tokens" }, ...spans.flatMap((span, key) => [words[key].before, span]))];
    if (!same) {
      const own = wordsOf(queries), asked = queries.map((name, query) => made("span", { textContent: own[query].text, className: query === row ? "chosen" : "", data: { query } }));
      lines.unshift(made("p", { className: "soft", textContent: "Queries" }), made("p", { className: "tokens" }, ...asked.flatMap((span, query) => [own[query].before, span])));
    }
    this.root.replaceChildren(...lines);
  }
}

// All heads as small maps; one is open.
class Gallery {
  constructor(open) {
    this.grid = made("div", { className: "viewer-heads" });
    this.grid.setAttribute("role", "group");
    this.grid.setAttribute("aria-label", "All heads: rows are layers, columns heads. Arrow keys open the next one.");
    this.buttons = new Map();
    this.grid.addEventListener("click", (event) => { const one = event.target.closest("button"); if (one) open(one.place); });
    this.grid.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move || !event.target.place) return;
      event.preventDefault();
      const { layer, head } = event.target.place, next = this.near(layer, head, ...move);
      if (next) { open(next.place); next.focus(); }
    });
    this.stop = () => {};
  }

  near(layer, head, down, right) {
    const [lines, columns] = [this.layers, this.heads];
    for (let at = 1; at <= Math.max(lines.length, columns.length); at += 1) {
      const line = lines[lines.indexOf(layer) + at * down], column = columns[columns.indexOf(head) + at * right];
      if (line === undefined || column === undefined) return null;
      const found = this.buttons.get(`${line} ${column}`);
      if (found) return found;
    }
    return null;
  }

  // Places of the heads that are there; `picture(place)` promises a canvas.
  fill(places, picture) {
    this.stop();
    const sorted = (name) => [...new Set(places.map((one) => one[name]))].sort((a, b) => a - b);
    [this.layers, this.heads] = [sorted("layer"), sorted("head")];
    this.grid.style.gridTemplateColumns = `max-content repeat(${this.heads.length}, minmax(12px, 44px))`;
    this.buttons.clear();
    const line = (layer) => [made("small", { textContent: layer }), ...this.heads.map((head) => {
      const place = places.find((one) => one.layer === layer && one.head === head);
      if (!place) return made("span", {});
      const button = made("button", { type: "button", title: `layer ${layer}, head ${head}`, tabIndex: -1 });
      button.place = place;
      button.setAttribute("aria-label", `Layer ${layer}, head ${head}`);
      this.buttons.set(`${layer} ${head}`, button);
      return button;
    })];
    this.grid.replaceChildren(made("small", {}), ...this.heads.map((head) => made("small", { textContent: head })), ...this.layers.flatMap(line));
    let stopped = false;
    this.stop = () => { stopped = true; };
    (async () => {
      for (const button of [...this.buttons.values()]) {
        const drawn = await picture(button.place);
        if (stopped) return;
        button.replaceChildren(drawn);
        await new Promise((done) => setTimeout(done));
      }
      this.grid.dataset.drawn = "true";
    })();
  }

  mark({ layer, head }) {
    for (const [name, button] of this.buttons) {
      const open = name === `${layer} ${head}`;
      button.setAttribute("aria-pressed", String(open));
      button.tabIndex = open ? 0 : -1;
    }
  }
}
