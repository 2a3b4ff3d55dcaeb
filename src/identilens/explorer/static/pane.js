// A column of the explorer: it asks the server to measure a text and shows its maps as they come.
const { made } = window, dark = window.matchMedia("(prefers-color-scheme: dark)"), look = () => window.identilensLooks[dark.matches ? "dark" : "light"];
const LOCK = "Lock a row first: click one in the map.", WAIT = 600, LONGEST = 2000, NOWHERE = { read() {}, write() {} };
let start = {}, token = "";

const written = (value) => (value === 0 ? "0" : Math.abs(value) < 0.001 ? value.toExponential(1) : value.toPrecision(3)).replaceAll("-", "−");

// Asks the server; `told` gets each line of its answer. Returns the last one.
async function ask(what, body, signal, told = () => {}) {
  const answer = await fetch(`api/${what}`, { method: "POST", signal, headers: { "Content-Type": "application/json", "X-Identilens-Token": token }, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  let rest = "", last = {};
  for (;;) {
    const { value, done } = await reader.read();
    rest += decoder.decode(value || new Uint8Array(), { stream: !done });
    const lines = rest.split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines.filter(Boolean)) { last = JSON.parse(line); told(last); }
    if (done) break;
  }
  if (last.error) throw new Error(last.error);
  return last;
}

function table(heads, rows) {
  const cells = (row, tag) => made("tr", {}, ...row.map((cell, at) => made(at ? tag : "th", { textContent: cell, scope: tag === "th" ? "col" : "row", className: at ? "number" : "" })));
  return made("table", {}, made("thead", {}, cells(heads, "th")), made("tbody", {}, ...rows.map((row) => cells(row, "td"))));
}

function save(name, content, type) {
  const link = made("a", { href: URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const ending = (model) => model.split("/").filter(Boolean).pop() || model;

// Models are called by the end of their path, where that tells them apart.
const called = (model) => (start.models.filter((one) => ending(one) === ending(model)).length > 1 ? model : ending(model));

// A relative change in words; what single precision rounds is no change.
const ROUNDING = 1e-5, SIZED = "relative change (below 1e-5: rounding)", sized = (change) => `${written(change)} of its size${change < ROUNDING ? " (rounding)" : ""}`;

// A token without its mark of a space or of a part of a word.
const plain = (name) => name.replace(/^(␣|##|…)(?=.)/u, "");

// What must stay the same when a row changes: outcome and tolerance, in words.
const KEPT = { "head 0": "the head's output, exactly", "head bfloat16": "the head's output, up to bfloat16's rounding", "head 1%": "the head's output, up to 1 %", "layer 1%": "the output of all heads of the layer, up to 1 %", "answer 1%": "the model's answer, up to 1 % of the head's effect", "answer 10%": "the model's answer, up to 10 % of the head's effect" };
const AIMS = { least: "least on the largest keys", farthest: "farthest", sparsest: "fewest keys" }, HEADS = { head: "this head", layer: "all heads of the layer", model: "all heads" }, WITHIN = { "0.1%": "within 0.1 % of the effect", "1%": "within 1 % of the effect", "10%": "within 10 % of the effect" };

const STORED = { bfloat16: "as bfloat16", int8: "with 8 bits", int4: "with 4 bits", int3: "with 3 bits", 0.1: "with Gaussian noise of 10 %" };

const group = (words, ...parts) => { const one = made("div", { className: "pair" }, made("span", { className: "soft", textContent: words }), ...parts); one.setAttribute("role", "group"); one.setAttribute("aria-label", words); return one; };
const choice = (label, options) => made("select", { ariaLabel: label }, ...Object.entries(options).map(([value, textContent]) => made("option", { value, textContent })));

class Pane {
  // `shown` is what the address holds of this column; `remember` is called whenever that changes.
  constructor(number, shown, remember) {
    this.model = made("select", { ariaLabel: "Model" }, ...start.models.map((name) => made("option", { value: name, textContent: called(name) })));
    const known = start.models.find((one) => one === shown?.model) ?? start.models.find((one) => ending(one) === ending(shown?.model ?? ""));
    this.model.value = known ?? start.models[Math.min(number, start.models.length - 1)];
    this.view = shown?.view ?? "";
    this.remember = remember;
    this.text = made("textarea", { ariaLabel: "Text", placeholder: "Type a text; it is measured as you pause.", value: shown ? shown.text : start.texts[Math.min(number, start.texts.length - 1)] || "", maxLength: 8000, spellcheck: false });
    this.examples = made("select", { ariaLabel: "Texts given at the start" }, made("option", { value: "", textContent: "a text given at the start…" }), ...start.texts.map((text, at) => made("option", { value: at, textContent: text.slice(0, 60) })));
    this.examples.hidden = start.texts.length < 2;
    this.state = made("span", { className: "soft", role: "status" });
    this.bar = made("progress", { hidden: true, max: 1, value: 0 });
    this.cancel = made("button", { type: "button", textContent: "Cancel", hidden: true });
    this.complaint = made("p", { className: "complaint", role: "alert" });
    this.number = number;
    this.stage = made("div", {});
    this.found = made("div", { className: "found", hidden: true });
    this.hand = made("div", { className: "hand", hidden: true });
    this.run = made("input", { type: "text", ariaLabel: "Name of the run", placeholder: "name of a run", maxLength: 64, size: 14 });
    this.run.addEventListener("keydown", (event) => { if (event.key === "Enter") this.saveRun(); });
    this.kept = choice("What must stay the same", KEPT);
    this.kept.addEventListener("change", () => this.viewer.redraw());
    [this.aim, this.heads, this.within] = [choice("What the other row is to do", AIMS), choice("Heads that change", HEADS), choice("Tolerance", WITHIN)];
    this.within.value = "1%";
    this.answer = made("input", { type: "text", ariaLabel: "Next token or class", placeholder: "the model's own answer", maxLength: 64, size: 18 });
    this.answer.addEventListener("keydown", (event) => { if (event.key === "Enter") this.needed(); });
    this.stored = choice("How the hidden states are stored", STORED);
    this.stored.value = "int4";
    this.tools = made("div", { className: "tools", hidden: true },
      group("Prove ranges while this stays", this.kept),
      group("Other weights, same output of this head", this.button("Farthest", () => this.alternative("far")), this.button("Random", () => this.alternative("sampled")), this.button("From other W_Q and W_K", () => this.parameters())),
      group("Other row, same answer of the model", this.aim, this.heads, this.within, this.button("Look for it", () => this.same())),
      group("Which tokens the answer needs", this.answer, this.button("Mark them", () => this.needed())),
      group("What the model's answer to this text or chat attends to", this.button("Let it answer", () => this.answered())),
      group("Which tokens can be read from this layer's hidden states, stored", this.stored, this.button("Read them", () => this.inverted())),
      group("Changes that matter", this.button("Take this head out", () => this.without())),
      group("What each token takes from the others", this.button("Estimate", () => this.contributions(false)), this.button("Exact", () => this.contributions(true))),
      group("Save", this.button("Map as PNG", () => this.picture()), this.button("Row as CSV", () => this.csv()), this.button("Row as SVG", () => this.slide("svg")), this.button("Row as PNG", () => this.slide("png")), this.button("Command and Python", () => this.lines()), ...(start.runs ? [this.run, this.button("Save as run", () => this.saveRun())] : [])));
    this.mixed = made("div", {});
    this.root = made("section", { className: "pane", ariaLabel: `Column ${number + 1}` },
      made("div", { className: "ask" }, made("div", { className: "bar" }, this.model, this.examples, this.bar, this.state, this.cancel), this.text, this.complaint), this.tools, this.found, this.hand, this.stage, this.mixed);
    this.stage.addEventListener("row", (event) => { this.row = event.detail; this.hand.hidden = true; });
    this.stage.addEventListener("click", (event) => { const line = event.target.closest("tr[data-key]"); if (line) this.drag(Number(line.dataset.key)); });
    this.cancel.addEventListener("click", () => this.stop());
    this.model.addEventListener("change", () => this.measure());
    this.examples.addEventListener("change", () => { if (this.examples.value !== "") { this.text.value = start.texts[this.examples.value]; this.measure(); } });
    this.text.addEventListener("input", () => { clearTimeout(this.waiting); this.waiting = setTimeout(() => this.measure(), WAIT); });
    if (shown && !known) this.complaint.textContent = `This explorer has no model ${shown.model}.`;
    else if (shown && !shown.text && shown.view) this.complaint.textContent = "The text was too long for the address: paste it here.";
  }

  // What the address holds of this column: its model, its text where that is short enough, and what its maps show.
  shown() {
    return { model: this.model.value, text: this.text.value.length > LONGEST ? "" : this.text.value, view: this.view };
  }

  button(words, act) {
    const one = made("button", { type: "button", textContent: words });
    one.addEventListener("click", act);
    return one;
  }

  stop() {
    this.asking?.abort();
    this.asking = null;
    this.busy("");
  }

  // Without a share the bar only says that something is being done.
  busy(words, share) {
    this.state.textContent = words;
    this.bar.hidden = !words;
    if (share === undefined) this.bar.removeAttribute("value"); else this.bar.value = share;
    this.cancel.hidden = !words;
  }

  // One question at a time; a new one ends the one before. Answers null where it was ended or failed.
  async one(what, body, words, told) {
    this.stop();
    const mine = (this.asking = new AbortController());
    this.complaint.textContent = "";
    this.busy(words);
    try {
      return await ask(what, body, mine.signal, (step) => { if (mine === this.asking && told) told(step); });
    } catch (error) {
      if (mine === this.asking) this.complaint.textContent = error.message;
      return null;
    } finally {
      if (mine === this.asking) { this.asking = null; this.busy(""); }
    }
  }

  async measure() {
    if (!this.text.value.trim()) return;
    this.found.hidden = this.hand.hidden = this.tools.hidden = true;
    this.viewer = this.row = this.held = null;
    this.known = {};
    this.certified = this.did = null;
    this.remember();
    this.viewerRoot = made("div", { className: "viewer", id: `maps-${this.number}` });
    this.stage.replaceChildren(this.viewerRoot);
    this.mixed.replaceChildren();
    const last = await this.one("measure", { model: this.model.value, text: this.text.value }, "measuring", (step) => {
      if (step.tokens) { this.cut = step.tokens.length >= step.most ? { max_length: step.most } : {}; this.state.textContent = `${step.tokens.length} tokens`; }
      if (!step.viewer) return;
      this.busy(`layer ${step.layer} of ${step.layers}`, step.layer / step.layers);
      if (this.viewer) this.viewer.add(step.viewer.maps.map((one) => ({ ...one, queries: this.place(step, one.queries), keys: this.place(step, one.keys) })));
      else {
        this.tokens = step.viewer.tokens;
        this.viewer = window.tokenMaps(this.viewerRoot, step.viewer, look, (choices, query) => this.prove(choices, query), { ...NOWHERE, write: (view) => this.seen(view) });
      }
    });
    if (!last) return;
    this.held = last.held;
    this.tools.hidden = false;
    this.viewerRoot.dataset.all = "true";
    await this.viewer.show(this.view);
    this.state.textContent = this.cut.max_length ? `Texts are cut at ${this.cut.max_length} tokens.` : "";
  }

  // Until all layers are there, the view is the one that is to be shown again.
  seen(view) {
    if (!this.held) return;
    this.view = view;
    this.remember();
  }

  // The place of a layer's tokens among those of all layers, which share most of them.
  place(step, at) {
    const names = step.viewer.tokens[at], key = names.join("\u0000"), known = this.tokens.findIndex((one) => one.join("\u0000") === key);
    return known >= 0 ? known : this.tokens.push(names) - 1;
  }

  at() { return { held: this.held, ...this.viewer.now().choices }; }

  async prove(choices, query) {
    if (!this.held) return null;
    const [outcome, tolerance] = this.kept.value.split(" "), body = { held: this.held, ...choices, query, outcome, tolerance }, name = JSON.stringify(body);
    this.proving?.abort();
    this.proving = new AbortController();
    this.known[name] ??= (await ask("row", body, this.proving.signal)).row;
    this.certified = this.known[name];
    return this.certified;
  }

  // Another row, of one head or of many, with the answer that the model gives now.
  async same() {
    const { row } = this.viewer.now();
    if (row === null) { this.complaint.textContent = LOCK; return; }
    const last = await this.one("same", { ...this.at(), query: row, aim: this.aim.value, tolerance: this.within.value, heads: this.heads.value }, "looking for another row with the same answer");
    if (!last) return;
    const { layer, head } = this.viewer.now().choices, { value: heads } = this.heads, together = heads === "head" ? {} : { together: true };
    this.did = { name: "alternatives", options: { ...(heads === "model" ? {} : { layers: layer }), ...(heads === "head" ? { heads: head } : {}), queries: row, outcome: last.same.answer.includes("prediction") ? "prediction" : "states", aim: this.aim.value, tolerance: this.within.value, ...together } };
    for (const { choices, layer } of last.same.maps) this.viewer.addLayer(choices, "same answer", layer, { "same answer − raw": ["same answer", "raw"] });
    this.told(`${last.same.words} Put into the model:`, last.same);
  }

  // The last row, of which a decoder predicts, is locked.
  async lockLast() {
    if (this.viewer.now().row === null) this.viewer.lock(this.tokens[0].length - 1);
  }

  // The text, each token marked by what the answer loses without it.
  async needed() {
    this.marked(await this.one("needed", { ...this.at(), answer: this.answer.value }, "running the model without each token"));
  }

  // The answer's tokens, each marked by the segment of the prompt with most of its attention.
  async answered() {
    this.marked(await this.one("answered", { held: this.held }, "answering", ({ progress, note }) => { if (note) this.busy(note, progress); }));
  }

  // The text, each token marked by whether it can be read from the states that the layer of the map gives on.
  async inverted() {
    this.marked(await this.one("inverted", { held: this.held, layer: this.viewer.now().choices.layer + 1, noise: this.stored.value }, "comparing with the states of other tokens", ({ progress, note }) => { if (note) this.busy(note, progress); }));
  }

  // A line of tokens, and sentences below. The server has escaped the tokens.
  marked(last) {
    if (!last) return;
    const line = made("div", { innerHTML: last.html });
    this.found.replaceChildren(line, ...last.words.split("\n").map((textContent) => made("p", { textContent })));
    this.found.hidden = false;
    this.found.scrollIntoView({ block: "nearest" });
  }

  async without() {
    const { layer, head } = this.viewer.now().choices, last = await this.one("without", this.at(), "running the model without the head");
    if (!last) return;
    this.did = { at: this.viewer.now().choices, other: "torch.zeros_like(head.attention)" };
    this.told(`Without head ${head} of layer ${layer}:`, last.broken);
  }

  async alternative(which) {
    const found = await this.other("alternative", { which }, which === "far" ? "alternative" : "drawn", "looking for an alternative and putting it back");
    if (!found) return;
    const options = "visible=head.visible, generator=torch.Generator().manual_seed(0)";
    this.did = which === "far" ? { at: this.viewer.now().choices, from: "far_alternatives", other: `far_alternatives(head.attention, head.projected, ${options})` } : { at: this.viewer.now().choices, from: "sample_alternatives", other: `sample_alternatives(head.attention, head.projected, 1, method="uniform", ${options})[0]` };
    const none = "No other weights give exactly this output, usually because the text has no more tokens than the head's values have dimensions. Take a longer text, or prove rows up to 1 %. The model's own map, put back:";
    this.told(found.distance < 5e-4 ? none : `Other weights with the same output, ${this.away(found)} Put back into the model:`, found);
  }

  // The head's own weights once its W_Q and W_K are others.
  async parameters() {
    const found = await this.other("parameters", {}, "other matrices", "looking for other W_Q and W_K");
    if (!found) return;
    const { layer, head } = this.viewer.now().choices;
    this.did = { name: "alternatives", options: { layers: layer, heads: head, realisable: true } };
    if (found.none) {
      this.found.replaceChildren(made("p", { textContent: `With other query and key matrices: ${found.none}` }));
      this.found.hidden = false;
      return;
    }
    const moved = Object.entries(found.moved).map(([name, share]) => `${name} by ${written(100 * share)} %`).join(" and ");
    this.told(`With other query and key matrices the head itself computes weights ${this.away(found)} What was changed: ${moved} of its norm. ${found.dimension === null ? "The dimension of such weights is not known" : `Such weights form a family of ${found.dimension} dimensions`}${found.note ? `; ${found.note}` : ""}. The model with these matrices:`, found);
  }

  away({ distance, output_error: error }) { return `${distance.toFixed(3)} away on average (total variation); the head's output changes by ${sized(error)}.`; }

  // Asks for other weights of the head and shows them as a layer of its map.
  async other(what, more, name, words) {
    const at = this.at(), choices = this.viewer.now().choices, last = await this.one(what, { ...at, ...more }, words);
    if (!last) return null;
    if (last.alternative.layer) this.viewer.addLayer(choices, name, last.alternative.layer, { [`${name} − raw`]: [name, "raw"] });
    return last.alternative;
  }

  // What each hidden token takes from every input token, in maps of their own.
  async contributions(exact) {
    const last = await this.one("contributions", { ...this.at(), exact }, "contributions", (step) => step.progress !== undefined && this.busy(step.note || "contributions", step.progress));
    if (!last) return;
    const maps = made("div", { className: "viewer", id: `contributions-${this.number}` });
    this.mixed.replaceChildren(made("h2", { textContent: exact ? "Contributions of every token, exact" : "Contributions of every token, sketched" }), maps);
    // That of the first token of a decoder says nothing: the locked one is shown, else the last.
    const end = last.viewer.maps.length - 1;
    window.tokenMaps(maps, { ...last.viewer, first: Math.min(end, this.viewer.now().row ?? end) }, look, null, NOWHERE);
    maps.scrollIntoView({ block: "nearest" });
  }

  async saveRun() {
    const name = this.run.value.trim();
    if (!name) { this.complaint.textContent = "Name the run first: letters, digits, - and _."; this.run.focus(); return; }
    const last = await this.one("save", { ...this.at(), name }, "saving", (step) => step.progress !== undefined && this.busy("saving", step.progress));
    if (last) listRuns(last.runs);
  }

  // The same table for all changes: those that the model does not notice and those that matter.
  told(words, { states, next, answer, logits_change: change }) {
    const sequences = [...new Set(states.map((one) => one.sequence))], of = (name) => states.filter((one) => one.sequence === name);
    const alone = sequences.length === 1, rows = sequences.map((name) => [alone ? SIZED : `${name}, ${SIZED}`, ...of(name).map((one) => written(one.change))]);
    const tables = [table(["Hidden state", ...of(sequences[0]).map((one) => one.layer)], rows)];
    if (next) tables.push(table(["Last position", "before", "after"], next.map((one) => [one.token, one.before.toFixed(4), one.after.toFixed(4)])));
    this.found.replaceChildren(made("p", { textContent: `${words} ${answer}.${change === undefined ? "" : ` Logits change by ${written(change)} of their size.`}` }), made("div", { className: "both" }, ...tables));
    this.found.hidden = false;
    this.found.scrollIntoView({ block: "nearest" });
  }

  // A weight moves from 0 to 1. Within its range the row goes towards the alternative where the weight is least or
  // greatest, and the output stays; outside of it the other keys share what is left, and the output changes.
  drag(key) {
    const { intervals, proven, weights, keys, query } = this.row || {};
    if (!proven || !this.held) return;
    // By hand, the head's output stays exactly: other ends that were proven allow more.
    const exact = this.kept.value === "head 0", lo = exact ? proven.lo[key] : intervals.lower(key), hi = exact ? proven.hi[key] : intervals.upper(key);
    // The page has weights rounded to 10 bits: the proven range does not let one stand outside of it.
    const weight = Math.min(hi, Math.max(lo, weights[key]));
    const slider = made("input", { type: "range", min: 0, max: 1, step: 0.001, value: weight, ariaLabel: `Weight of ${keys[key]}` });
    const range = made("span", { className: "range" }, slider);
    range.style.setProperty("--from", `${100 * lo}%`);
    range.style.setProperty("--to", `${100 * hi}%`);
    const words = made("span", { textContent: `${keys[key]} (key ${key})` }), value = made("output", { textContent: `${written(weight)}; the head's output can stay the same with ${written(lo)} to ${written(hi)}` });
    const within = (aim) => aim >= lo && aim <= hi;
    slider.addEventListener("input", () => { const aim = Number(slider.value); value.textContent = `${written(aim)}: ${within(aim) ? "the head's output can stay the same" : "the head's output changes"}`; });
    const matters = async (aim) => {
      const last = await this.one("weight", { ...this.at(), query, key, weight: aim }, "putting the row into the model");
      if (last) this.byHand(query, last.broken);
      if (last) this.told(`Row ${query} with ${written(aim)} on ${keys[key]} and the rest shared by its other keys: the head's output of this row changes by ${sized(last.broken.output_error)}. Put into the model:`, last.broken);
    };
    slider.addEventListener("change", async () => {
      const aim = Number(slider.value), up = aim > weight;
      if (!within(aim)) { matters(aim); return; }
      up ? intervals.upper(key) : intervals.lower(key);
      const end = intervals.vertex(), share = Math.min(1, Math.abs(aim - weight) / (Math.abs(end[key] - weight) || 1));
      const last = await this.one("weights", { ...this.at(), query, change: Array.from(end, (one, at) => share * (one - weights[at])) }, "putting the row back");
      if (!last) return;
      this.byHand(query, last.moved);
      this.told(`Row ${query} with ${written(last.moved.weights[key])} on ${keys[key]}: the head's output changes by ${sized(last.moved.output_error)}. Put back into the model:`, last.moved);
    });
    this.hand.replaceChildren(words, range, value, this.button("Take this key out", () => matters(0)));
    this.hand.hidden = false;
    this.hand.scrollIntoView({ block: "nearest" });
    slider.focus({ preventScroll: true });
  }

  // What repeats a row that was changed by hand.
  byHand(query, { weights }) {
    this.did = { at: this.viewer.now().choices, other: `head.attention.index_copy(0, torch.tensor([${query}]), torch.tensor([[${weights.map((one) => Number(one.toPrecision(12))).join(", ")}]], dtype=torch.float64))` };
  }

  // A row as a slide: its largest keys with weight and range, what must stay the same, and where it comes from.
  async slide(kind) {
    const { intervals, proven, weights, keys, query } = this.row || {};
    if (!proven) { this.complaint.textContent = LOCK; return; }
    const { layer, head } = this.viewer.now().choices, { page } = look(), all = [...this.viewerRoot.querySelectorAll(".row-keys tbody tr[data-lo]")].slice(0, 12).map((one) => ({ name: plain(this.row.keys[one.dataset.key]), ...one.dataset }));
    const escaped = (words) => words.replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`), at = (value) => 360 + 760 * value, most = Math.max(...all.map((one) => Number(one.hi)), 0.01);
    const line = (one, number) => { const y = 170 + 40 * number, of = (name) => at(Number(one[name]) / most); return `<text x="340" y="${y + 7}" text-anchor="end">${escaped(one.name)}</text><rect x="${of("lo")}" y="${y - 7}" width="${Math.max(2, of("hi") - of("lo"))}" height="14" rx="3" fill="${page.accent}" opacity=".35"/><circle cx="${of("weight")}" cy="${y}" r="7" fill="${page.accent}"/><text x="1140" y="${y + 7}">${Number(one.weight).toFixed(3)}</text>`; };
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="1280" height="720" viewBox="0 0 1280 720" font-family="sans-serif" font-size="22" fill="${page.ink}"><rect width="1280" height="720" fill="${page.surface}"/><text x="60" y="70" font-size="34">${escaped(`What “${plain(keys[query])}” (token ${query}) attends to`)}</text><text x="60" y="112">${escaped(`${called(this.model.value)}, layer ${layer}, head ${head}. Dot: weight. Bar: range in which it must lie.`)}</text>${all.map(line).join("")}<text x="60" y="690" font-size="18">${escaped(`Kept the same: ${(this.certified?.kept ?? KEPT[this.kept.value]).split(" (")[0]}. identilens`)}</text></svg>`;
    if (kind === "svg") { save("row.svg", svg, "image/svg+xml"); return; }
    const image = new Image(), canvas = made("canvas", { width: 1280, height: 720 });
    image.src = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    await image.decode();
    canvas.getContext("2d").drawImage(image, 0, 0);
    canvas.toBlob((blob) => save("row.png", blob));
  }

  picture() {
    this.viewerRoot.querySelector(".maps canvas").toBlob((blob) => save("map.png", blob));
  }

  csv() {
    const rows = [...this.viewerRoot.querySelectorAll(".row-keys tbody tr")];
    if (!rows.length) { this.complaint.textContent = LOCK; return; }
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = rows.map((one) => [one.dataset.key, quoted(this.row.keys[one.dataset.key]), one.dataset.weight, one.dataset.lo, one.dataset.hi, quoted(one.dataset.verdict || ""), this.certified?.outcome, this.certified?.tolerance].join());
    save("row.csv", ["key,token,weight,lo,hi,verdict,outcome,tolerance", ...lines].join("\n") + "\n", "text/csv");
  }

  // What makes the view again, to read, copy and save.
  lines() {
    const { choices, row } = this.viewer.now(), { layer, head, kind } = choices, query = row ?? 0, text = JSON.stringify(this.text.value), model = JSON.stringify(this.model.value);
    const quoted = (words) => `'${words.replaceAll("'", `'\\''`)}'`;
    const options = (values) => Object.entries(values).map(([name, value]) => ` --${name.replaceAll("_", "-")} ${value}`).join("");
    const flags = (values) => Object.entries(values).map(([name, value]) => (value === true ? ` --${name}` : options({ [name]: value }))).join("");
    const named = (values) => Object.entries(values).map(([name, value]) => `, ${name}=${JSON.stringify(value)}`).join("");
    // What must stay the same, where that is more than a head's exact output.
    const { outcome, tolerance } = (row !== null && this.certified) || {}, how = !outcome || (outcome === "head" && tolerance === "0") ? {} : { outcome, tolerance };
    const certainty = how.outcome ? `idl.certify(lens, [${text}], layers=[${layer}], heads=[${head}], queries=[${query}], kind="${kind}"${named({ ...how, ...this.cut })})` : `audit.certify(0, layer=${layer}, head=${head}, query=${query}, kind="${kind}")`;
    const command = `identilens certify --model ${quoted(this.model.value)} --text ${quoted(this.text.value)} --layers ${layer} --heads ${head} --kind ${kind} --queries ${query}${options({ ...how, ...start.load, ...this.cut })} --out run\n`;
    const python = `import identilens as idl\n\nlens = idl.load(${model}${named(start.load)})\naudit = idl.audit(lens, [${text}], layers=[${layer}], matrices=True${named(this.cut)})\nmaps = audit.view(text=0, layer=${layer}, head=${head}, kind="${kind}")\nmaps.to_html("maps.html")\ncertainty = ${certainty}\ncertainty.show()\n`;
    const again = this.again(text, named), did = this.did?.options ? `identilens ${this.did.name} --model ${quoted(this.model.value)} --text ${quoted(this.text.value)} --kind ${kind}${flags({ ...this.did.options, ...start.load, ...this.cut })} --out changed\n` : "";
    const part = (words, name, content) => made("div", {}, this.button(words, () => save(name, content, "text/plain")), made("pre", { textContent: content }));
    this.found.replaceChildren(part("Save the command", "view.sh", command + did), part("Save the Python lines", "view.py", python + again));
    this.found.hidden = false;
  }
  // Python lines that repeat the change that was made last, if there was one.
  again(text, named) {
    if (!this.did) return "";
    const { name, options, from, other, at } = this.did, { layer, head, kind } = at ?? this.viewer.now().choices;
    if (options) return `changed = idl.${name}(lens, [${text}], kind="${kind}"${named({ ...options, ...this.cut }).replaceAll("true", "True")})\nchanged.show()\n`;
    const imports = from ? `import torch\nfrom identilens.measures.attention import ${from}\n\n` : "import torch\n\n";
    return `\n${imports}heads = next(lens.capture([${text}], weights=True${named(this.cut)})).heads\nhead = next(one for one in heads if one.address == (${layer}, ${head}, "${kind}"))\nother = ${other}\nbefore, after = (lens.substitute(one, ${text}${named(this.cut)}) for one in ({}, {head.address: other}))\n`;
  }
}
