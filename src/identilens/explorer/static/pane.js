// A column of the explorer: it asks the server to measure a text and shows its maps as they come.
const { made } = window, dark = window.matchMedia("(prefers-color-scheme: dark)"), look = () => window.identilensLooks[dark.matches ? "dark" : "light"];
const LOCK = "Lock a row first: click one in the map.", WAIT = 600, LONGEST = 2000, NOWHERE = { read() {}, write() {} };
let start = {}, token = "";

const written = (value) => (value === 0 ? "0" : Math.abs(value) < 0.001 ? value.toExponential(1) : value.toPrecision(3)).replaceAll("-", "−");

// As the list of keys writes numbers.
const { written: listed, interval } = window.tokenMaps;

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
const ROUNDING = 1e-5, LEAST = 1e-9, SIZED = "relative change (below 0.001 %: rounding)", percent = (share) => (share < ROUNDING ? "0 %" : `${written(100 * share)} %`), sized = (change) => `${percent(change)} of its size${change < ROUNDING ? " (rounding)" : ""}`;

// A token without its mark of a space or of a part of a word.
const plain = (name) => name.replace(/^(␣|##|…)(?=.)/u, "");

// The layer and head of what was open when a question was asked.
const named = ({ choices: { layer, head } }) => `layer ${layer}, head ${head}`;

// What must stay the same when a row changes: outcome and tolerance, in words.
const KEPT = { "head bfloat16": "the head's output, up to bfloat16's rounding", "head 0": "the head's output, exactly", "head 1%": "the head's output, up to 1 %", "layer 1%": "the layer's output, up to 1 %", "answer 1%": "the model's answer, up to 1 %", "answer 10%": "the model's answer, up to 10 %" };
const NATS = "0.001nats", AIMS = { least: "away from the largest keys", farthest: "as far away as possible", sparsest: "onto the fewest keys" }, HEADS = { head: "this head", layer: "all heads of the layer", model: "all heads" }, WITHIN = { "0.1%": "to 0.1 % of the row's effect", "1%": "to 1 % of the row's effect", "10%": "to 10 % of the row's effect", [NATS]: "to 0.001 nats" };


// Texts of more tokens are not shown once more beside a change.
const FEW = 80;

// The layer of a map with the row that was changed by hand, or lacks a key.
const CHANGED = "changed row";

const group = (words, ...parts) => { const one = made("div", { className: "pair" }, made("span", { className: "soft", textContent: words }), ...parts); one.setAttribute("role", "group"); one.setAttribute("aria-label", words); return one; };
// A question of a column, with what answers it; one is open at a time.
const question = (number, words, ...parts) => made("details", { className: "question", name: `questions-${number}` }, made("summary", { textContent: words }), ...parts);
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
    this.doing = made("div", { className: "doing" }, this.bar, this.state, this.cancel, this.complaint);
    this.number = number;
    this.stage = made("div", {});
    this.found = made("div", { className: "found", hidden: true });
    this.hand = made("div", { className: "hand", hidden: true });
    // The slider of a key stands below its row.
    this.handLine = made("tr", { className: "hand-line" }, made("td", { colSpan: 4 }, this.hand));
    this.kept = choice("What must stay the same", KEPT);
    this.kept.addEventListener("change", () => this.viewer.redraw());
    [this.aim, this.heads, this.within] = [choice("What the other row is to do", AIMS), choice("Heads that change", HEADS), choice("Tolerance", WITHIN)];
    this.within.value = "1%";
    this.within.title = "A row's effect: what the answer changes by when the head adds nothing in that row.";
    this.answer = made("input", { type: "text", ariaLabel: "Next token or class", placeholder: "the model's own answer", maxLength: 64, size: 24 });
    this.answer.addEventListener("keydown", (event) => { if (event.key === "Enter") this.asks.needed.click(); });
    this.keep = group("Prove ranges while this stays", this.kept);
    this.asks = { needed: this.button("Mark them", () => this.needed()), answered: this.button("Let it answer", () => this.answered()) };
    const asked = (words, ...parts) => question(number, words, ...parts), said = () => made("span", { className: "soft" });
    this.exchange = asked("Could this row be another one? Exchange it: the answer stays", this.aim, this.heads, this.within, this.button("Look for it", () => this.same()));
    this.why = said();
    this.whole = asked("Could this map be another one? Exchange all rows: the head's output stays", this.button("Farthest", () => this.alternative(), "As far away as possible"), this.why);
    this.breaking = asked("What changes the answer? Break the row", this.button("Take the row's strongest key out", () => this.broken(), "The key without which the row changes most, by a first estimate"), this.button("Move a key's weight", () => this.toKeys(), "Goes to the keys of the locked row: Enter gives a key its slider"), this.button("Take this head out", () => this.without()));
    this.tools = made("div", { className: "questions", hidden: true }, this.exchange, this.whole, this.breaking,
      asked("Which tokens does the answer need?", this.answer, this.asks.needed, said()),
      asked("What does the model's answer to this text or chat attend to?", this.asks.answered, said()),
      asked("How do I keep this?", this.button("Map as PNG", () => this.viewerRoot.querySelector(".maps canvas").toBlob((blob) => save("map.png", blob))), this.button("Row as CSV", () => this.csv()), this.button("Row as SVG", () => this.slide()), this.button("Command and Python", () => this.lines())));
    this.root = made("section", { className: "pane", ariaLabel: `Column ${number + 1}` },
      made("div", { className: "ask" }, made("div", { className: "bar" }, this.model, this.examples), this.text, this.doing), this.stage, this.tools);
    this.stage.addEventListener("row", ({ detail }) => {
      const stays = this.row?.choices === detail.choices && this.row.query === detail.query;
      this.row = detail;
      // A slider stays with its row, also with the focus, while the keys are listed anew.
      if (!stays) this.drop();
    });
    this.hand.addEventListener("focusin", ({ target }) => { this.focus = target; });
    this.hand.addEventListener("focusout", ({ relatedTarget }) => { if (relatedTarget) this.focus = null; });
    this.hand.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.viewerRoot.querySelector(`.row-keys tr[data-key="${this.key}"] .key`)?.focus();
    });
    this.stage.addEventListener("keys", () => this.placeHand());
    this.stage.addEventListener("click", (event) => { const line = event.target.closest("tr[data-key]"); if (line) this.drag(Number(line.dataset.key)); });
    this.cancel.addEventListener("click", () => this.stop());
    this.model.addEventListener("change", () => this.another());
    this.examples.addEventListener("change", () => { if (this.examples.value !== "") { this.text.value = start.texts[this.examples.value]; this.another(); } });
    this.text.addEventListener("input", () => { clearTimeout(this.waiting); this.waiting = setTimeout(() => this.another(), WAIT); });
    if (shown && !known) this.complaint.textContent = `This explorer has no model ${shown.model}.`;
    else if (shown && !shown.text && shown.view) this.complaint.textContent = "The text was too long for the address: paste it here.";
  }

  // What the address holds of this column: its model, its text where that is short enough, and what its maps show.
  shown() {
    return { model: this.model.value, text: this.text.value.length > LONGEST ? "" : this.text.value, view: this.view };
  }

  button(words, act, title = "") {
    const one = made("button", { type: "button", textContent: words, title });
    one.addEventListener("click", () => { this.where = one.closest(".question") ?? this.hand; act(); });
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
    // A slider stays where it is while the row is put back.
    if (this.where !== this.hand) this.below(this.doing);
    this.busy(words);
    try {
      return await ask(what, body, mine.signal, (step) => { if (mine === this.asking && told) told(step); });
    } catch (error) {
      if (mine === this.asking) this.complain(error.message);
      return null;
    } finally {
      if (mine === this.asking) { this.asking = null; this.busy(""); }
    }
  }

  // Another text, or model: the head stays open, but a row of the last text means nothing in this one.
  another() {
    const view = new URLSearchParams(this.view);
    view.delete("row");
    this.view = String(view);
    return this.measure();
  }

  async measure() {
    if (!this.text.value.trim()) return;
    this.where = this.text;
    this.drop();
    this.found.hidden = this.tools.hidden = true;
    this.changes = [];
    this.place = null;
    this.viewer = this.row = this.held = null;
    this.known = {};
    this.certified = this.did = this.after = this.moved = null;
    this.remember();
    this.viewerRoot = made("div", { className: "viewer", id: `maps-${this.number}` });
    this.stage.replaceChildren(this.viewerRoot);
    const last = await this.one("measure", { model: this.model.value, text: this.text.value }, "measuring", (step) => {
      if (step.tokens) { this.cut = step.tokens.length >= step.most ? { max_length: step.most } : {}; this.state.textContent = `${step.tokens.length} tokens`; }
      if (!step.viewer) return;
      this.busy(`layer ${step.layer} of ${step.layers}`, step.layer / step.layers);
      if (this.viewer) this.viewer.add(step.viewer.maps.map((one) => ({ ...one, queries: this.placeOf(step, one.queries), keys: this.placeOf(step, one.keys) })));
      else {
        this.tokens = step.viewer.tokens;
        this.viewer = window.tokenMaps(this.viewerRoot, step.viewer, look, (choices, query) => this.prove(choices, query), { ...NOWHERE, write: (view) => this.seen(view) });
        const controls = this.viewerRoot.querySelectorAll(":scope > .viewer-bar, .layer-words, .viewer-top .soft");
        this.viewerRoot.querySelector(".viewer-stage").before(question(this.number, "What else can the map show?", ...controls));
      }
    });
    if (!last) return;
    [this.held, this.predicts] = [last.held, last.predicts];
    this.within.lastChild.hidden = !last.predicts;
    if (!last.predicts && this.within.value === NATS) this.within.value = "10%";
    this.tools.hidden = false;
    this.viewerRoot.querySelector(".viewer-row .viewer-bar").append(this.keep);
    for (const [button, why] of [[this.asks.needed, last.predicts ? "" : "this model predicts no token and no class"], [this.asks.answered, last.writes ? "" : "this model writes no answers"]]) {
      button.disabled = Boolean(why);
      button.title = why;
      button.nextSibling.textContent = why && `(${why})`;
    }
    if (this.view) await this.viewer.show(this.view); else {
      await this.strongest();
      this.lockOne();
    }
    await this.able();
    this.viewerRoot.dataset.all = "true";
    this.state.textContent = this.cut.max_length ? `Texts are cut at ${this.cut.max_length} tokens.` : "";
  }

  // Until all layers are there, the view is the one that is to be shown again.
  seen(view) {
    if (!this.held) return;
    this.view = view;
    this.remember();
    this.able();
  }

  // Where no other weights give a head's output exactly, none are asked for.
  async able() {
    const fixed = await this.viewer.fixed(), why = fixed ? "no other weights give exactly this head's output: the text has too few tokens. Exchange one row, which may change the output a little" : "";
    for (const one of this.whole.querySelectorAll("button")) one.disabled = fixed;
    this.why.textContent = why && `(${why})`;
  }

  // Opens the head that the answer needs most.
  async strongest() {
    const before = JSON.stringify(this.viewer.now());
    this.place ??= (await this.one("strongest", { held: this.held }, "looking for the head that matters most"))?.strongest;
    if (this.place && JSON.stringify(this.viewer.now()) === before) await this.viewer.open(this.place);
  }

  // The place of a layer's tokens among those of all layers, which share most of them.
  placeOf(step, at) {
    const names = step.viewer.tokens[at], key = names.join("\u0000"), known = this.tokens.findIndex((one) => one.join("\u0000") === key);
    return known >= 0 ? known : this.tokens.push(names) - 1;
  }

  at() { return { held: this.held, ...this.viewer.now().choices }; }

  async prove(choices, query) {
    if (!this.held) return null;
    const name = JSON.stringify([this.held, choices, query, this.kept.value]);
    if (name !== this.question) this.proving?.abort();
    this.question = name;
    this.certified = await this.ranges(choices, query, this.kept.value);
    return this.certified;
  }

  // The proven ranges of a row while `kept` stays; each is asked for once.
  ranges(choices, query, kept) {
    const [outcome, tolerance] = kept.split(" "), body = { held: this.held, ...choices, query, outcome, tolerance }, name = JSON.stringify(body), { known } = this;
    if (!known[name]) {
      this.proving = new AbortController();
      known[name] = ask("row", body, this.proving.signal).then(({ row }) => row);
      known[name].catch(() => delete known[name]);
    }
    return known[name];
  }

  // The proof of the locked row, of one that matters if none is; null where it cannot be proven.
  async proven() {
    this.lockOne();
    const { choices, row } = this.viewer.now();
    this.below(this.doing);
    this.busy("proving the row");
    try { return await this.prove(choices, row); } catch { return null; } finally { this.busy(""); }
  }

  // Another row, of one head or of many, with the answer that the model gives now.
  async same() {
    const at = this.viewer.now(), { row } = at, { layer } = at.choices;
    if (row === null) { this.complain(LOCK); return; }
    const last = await this.one("same", { ...this.at(), query: row, aim: this.aim.value, tolerance: this.within.value, heads: this.heads.value }, "looking for another row with the same answer");
    if (!last) return;
    const { value: heads } = this.heads, together = heads === "head" ? {} : { together: true };
    this.did = { name: "alternatives", options: { ...(heads === "model" ? {} : { layers: layer }), ...(heads === "head" ? { heads: at.choices.head } : {}), queries: row, outcome: last.same.answer.includes("prediction") ? "prediction" : "states", aim: this.aim.value, tolerance: this.within.value, ...together } };
    const { maps, distance, tolerance, mass_before: before, mass_after: after, keys_before: had, keys_after: have, largest_share: share } = last.same, part = (mass) => `${(100 * mass).toFixed(1)} %`;
    const one = maps.length === 1, effect = `${tolerance} of the effect of ${one ? "this row" : `these rows of ${maps.length} heads`}, which is what the answer changes by if ${one ? "the head adds nothing in it" : "these heads add nothing in it"}`;
    const words = `With the same answer, up to ${tolerance === NATS ? "0.001 nats" : effect}. ${one ? "The" : `On average of ${maps.length} heads, the`} largest keys, as few as have ${100 * share} % of the attention together, had ${part(before)} of it; now they have ${part(after)}. Keys with any attention: ${Math.round(had)} before, ${Math.round(have)} now. Of the attention, ${part(distance)} moved to other keys (total variation ${distance.toFixed(3)}). Put into the model:`;
    for (const { choices, layer } of maps) this.viewer.addLayer(choices, "same answer", layer, { "same answer − raw": ["same answer", "raw"] });
    await this.told(words, `Exchange: row ${row}, ${heads === "head" ? named(at) : heads === "layer" ? `all heads of layer ${layer}` : "all heads"}; answer kept ${WITHIN[this.within.value]}`, last.same, at, ["raw", "same answer"]);
  }

  // The row that matters is locked, else the last one, of which a decoder predicts.
  lockOne() {
    const { row, count } = this.viewer.now();
    if (row === null) this.viewer.lock(Math.min(this.place?.row ?? count - 1, count - 1));
  }

  // In the tour, ranges are by the answer: those of short rows by a head's output are points.
  forAnswer() {
    this.kept.value = "answer 10%";
    this.lockOne();
    return this.viewer.redraw();
  }

  // The last two steps of the tour: the same row, with other weights that keep the answer and without its strongest key.
  async exchanged() {
    const row = await this.proven();
    // In nats as in the story of the documentation, where that is less than a tenth of the row's effect.
    this.within.value = this.predicts && row?.effect > 0.01 ? NATS : "10%";
    this.where = this.exchange;
    await this.same();
  }

  async broken() {
    this.where = this.breaking;
    const row = await this.proven();
    if (!row) { this.complain("This row cannot be proven: take the head out, or choose another one."); return; }
    const all = row.removal.map(Number);
    const most = row.key[all.indexOf(Math.max(...all))];
    this.strong = this.row.keys[most];
    this.inside = row.lo[row.key.indexOf(most)] < LEAST;
    await this.weigh(this.viewer.now().row, most, 0);
  }

  // The first key of the locked row gets the focus.
  async toKeys() {
    await this.proven();
    await new Promise((done) => requestAnimationFrame(done));
    this.viewerRoot.querySelector(".row-keys .key")?.focus();
  }

  // The text, each token marked by what the answer loses without it.
  async needed() {
    this.marked(await this.one("needed", { ...this.at(), answer: this.answer.value }, "running the model without each token"));
  }

  // Prompt and answer, coloured by what the answer needs and is certain to attend to.
  async answered() {
    this.marked(await this.one("answered", { held: this.held }, "answering", ({ progress, note }) => { if (note) this.busy(note, progress); }));
  }

  // A line of tokens, and sentences below. The server has escaped the tokens.
  marked(last, first) {
    if (!last) return;
    const line = made("div", { innerHTML: last.html });
    this.put(line, ...[...(first ? [first] : []), ...last.words.split("\n")].map((textContent) => made("p", { textContent })));
  }

  // What came out stands below what was pressed.
  put(...parts) {
    this.found.replaceChildren(...parts);
    this.found.hidden = false;
    this.complaint.textContent = "";
    this.below(this.found);
    this.seek();
  }

  // So does what is being done, and what went wrong.
  complain(words) {
    this.below(this.doing);
    this.complaint.textContent = words;
    this.complaint.scrollIntoView({ block: "nearest" });
  }

  // A slider that is gone has no place any more.
  below(one) {
    const where = this.where.isConnected ? this.where : this.breaking;
    if (!where.matches(".question")) { where.after(one); return; }
    where.open = true;
    where.append(one);
  }

  seek() {
    // Of what does not fit, the beginning is shown; a slider stays above what it led to.
    const top = this.where === this.hand ? this.hand : this.found;
    top.scrollIntoView({ block: this.found.offsetHeight > 0.6 * window.innerHeight ? "start" : "nearest" });
  }

  // The slider goes; what it led to stays.
  drop() {
    if (this.handLine.contains(this.found)) this.tools.append(this.found);
    this.hand.hidden = true;
    this.focus = null;
    this.handLine.remove();
  }

  placeHand() {
    if (!this.hand.hidden) this.viewerRoot.querySelector(`.row-keys tr[data-key="${this.key}"]`)?.after(this.handLine);
    if (!this.focus || document.activeElement !== document.body) return;
    this.focus.focus({ preventScroll: true });
    this.hand.scrollIntoView({ block: "nearest" });
  }

  async without() {
    const at = this.viewer.now(), last = await this.one("without", this.at(), "running the model without the head");
    if (!last) return;
    this.did = { at: at.choices, other: "torch.zeros_like(head.attention)" };
    await this.told(`Without ${named(at)}:`, `Break: without ${named(at)}`, last.broken, at);
    this.viewer.pick("raw");
  }

  async alternative() {
    const at = this.viewer.now(), name = "alternative", found = await this.other("alternative", name, "looking for an alternative and putting it back");
    if (!found) return;
    this.did = { at: at.choices, from: "far_alternatives", other: "far_alternatives(head.attention, head.projected, visible=head.visible, generator=torch.Generator().manual_seed(0))" };
    const none = "No other weights give exactly this output, usually because the text has no more tokens than the head's values have dimensions. Take a longer text, or prove rows up to 1 %. The model's own map, put back:";
    await this.told(found.distance < 5e-4 ? none : `Other weights with the same output, ${this.away(found)} Put back into the model:`, found.distance < 5e-4 ? `No exchange: own weights of ${named(at)}` : `Exchange: all rows, ${named(at)}; output kept`, found, at, ["raw", name]);
  }

  away({ distance, output_error: error }) { return `${distance.toFixed(3)} away on average (total variation); the head's output changes by ${sized(error)}.`; }

  // Asks for other weights of the head and shows them as a layer of its map.
  async other(what, name, words) {
    const at = this.at(), choices = this.viewer.now().choices, last = await this.one(what, at, words);
    if (!last) return null;
    if (last.alternative.layer) this.viewer.addLayer(choices, name, last.alternative.layer, { [`${name} − raw`]: [name, "raw"] });
    return last.alternative;
  }

  // One table for all changes of a text, those that the model does not notice and those that matter; below it more on
  // the last one: `rows` are the layers of the map, or the weights, that show a row before and after.
  async told(words, done, { states, next, answer: said, same_top: stays, change, largest, output_error: output, logits_change: logits }, at, rows, hand) {
    const answer = this.predicts ? `${said}; its most likely token or class ${stays ? "stays" : "changes"}` : said;
    const nats = (value) => (value < LEAST ? "0" : value < 1e-5 ? written(value) : String(Number(value.toPrecision(2)))), tokens = (next ?? []).slice(0, 3);
    // What is most likely comes first: a phone shows it without scrolling sideways.
    const first = (when) => { const most = next.reduce((a, b) => (b[when] > a[when] ? b : a)); return `“${plain(most.token)}” ${percent(most[when])}`; };
    const heads = next ? ["Most likely", "Answer changes by (nats)", "Head's output changes by", ...tokens.map((one) => `Probability of “${plain(one.token)}”`), "Largest change of a probability"] : ["Final hidden states change by", "Head's output changes by"];
    // Of one slider the last value is a line.
    if (hand && hand === this.moved) this.changes.pop();
    this.moved = hand;
    this.after = rows && { ...at, done, weights: await this.viewer.rowOf(at.choices, at.row ?? 0, rows[1]) };
    this.changes.push(next ? [done, first("after"), nats(change), percent(output), ...tokens.map((one) => percent(one.after)), percent(largest)] : [done, percent(change), percent(output)]);
    const own = next ? ["The model as it is", first("before"), "", "", ...tokens.map((one) => percent(one.before)), ""] : ["The model as it is", "", ""];
    const sequences = [...new Set(states.map((one) => one.sequence))], of = (name) => states.filter((one) => one.sequence === name), alone = sequences.length === 1;
    const wide = (...all) => { const one = made("div", { className: "wide", tabIndex: 0, ariaLabel: "Table, scrolls sideways" }, table(...all)); one.setAttribute("role", "region"); return one; };
    const hint = made("p", { className: "soft", textContent: "The table goes on to the right: scroll it sideways." }), told = wide(["What was done", ...heads], [own, ...this.changes]);
    const more = [wide(["Hidden state", ...of(sequences[0]).map((one) => one.layer)], sequences.map((name) => [alone ? SIZED : `${name}, ${SIZED}`, ...of(name).map((one) => percent(one.change))]))];
    if (next) more.push(table(["Next token, or class", "before", "after"], next.map((one) => [plain(one.token), one.before.toFixed(4), one.after.toFixed(4)])));
    const query = at.row ?? Math.min(this.place?.row ?? at.count - 1, at.count - 1), strips = rows && this.tokens[0].length <= FEW ? await this.viewer.strips(at.choices, query, rows) : [];
    this.put(
      ...strips, hint, told,
      made("p", { className: "said", textContent: `${words} ${answer}.${logits === undefined ? "" : ` Logits change by ${percent(logits)} of their size.`}` }),
      made("p", { className: "soft", textContent: `The head's output is what it adds in the rows that were changed; the answer is ${next ? "the model's prediction" : "the model's final hidden states"}. Ranges of weights are proven for what stands above them, such as the head's exact output: a row with the same answer may leave them, and a value inside of a range keeps what stays only if the other weights move to match. Less than 0.001 %${next ? ", or 1e-9 nats," : ""} is rounding and stands as 0 in the table.` }),
      made("details", {}, made("summary", { textContent: `The last change: ${next ? "more next tokens or classes, and " : ""}every hidden state` }), made("div", { className: "both" }, ...more)),
    );
    hint.hidden = told.scrollWidth <= told.clientWidth;
  }

  // A weight moves from 0 to 1. Within its range the row goes towards the alternative where the weight is least or
  // greatest, and the output stays; outside of it the other keys share what is left, and the output changes.
  async drag(key) {
    const { intervals, proven, weights, keys, query, choices } = this.row || {};
    if (!proven || !this.held) return;
    this.where = this.stage;
    // By hand, the head's output stays exactly: other ends that are listed allow more.
    const kept = this.kept.value, exact = await this.ranges(choices, query, "head 0").catch((error) => { if (error.name !== "AbortError") this.complain(error.message); }), place = exact?.key.indexOf(key);
    if (!exact || this.row.query !== query || this.row.choices !== choices) return;
    const [lo, hi, weight] = [exact.lo[place], exact.hi[place], exact.value[place]];
    this.where = this.hand;
    const at = this.viewer.now(), slider = made("input", { type: "range", min: 0, max: 1, step: 0.001, value: weight, ariaLabel: `Weight of ${plain(keys[key])}` });
    const range = made("span", { className: "range" }, slider);
    range.style.setProperty("--from", `${100 * lo}%`);
    range.style.setProperty("--to", `${100 * hi}%`);
    const words = made("span", { textContent: `“${plain(keys[key])}” (key ${key})` }), value = made("output", { textContent: listed(weight) }), within = (aim) => aim >= lo && aim <= hi;
    const both = made("p", { className: "soft", textContent: `Coloured: ${interval(lo, hi)}, the range while the head's output stays exactly. Inside of it the other weights are moved to match; outside they share the rest.${kept === "head 0" ? "" : ` In the list: ${interval(proven.lo[key], proven.hi[key])}, the range while this stays: ${KEPT[kept]}. Outside of the coloured part the slider does not look for the weights that match, so that the answer can change.`}` });
    slider.addEventListener("input", () => { const aim = Number(slider.value); value.textContent = `${listed(aim)}: ${within(aim) ? "the others move to match, the head's output stays" : "the others share the rest, the head's output changes"}`; });
    slider.addEventListener("change", async () => {
      this.where = this.hand;
      const aim = Number(slider.value), up = aim > weight;
      if (!within(aim)) { this.weigh(query, key, aim, slider); return; }
      up ? intervals.upper(key) : intervals.lower(key);
      const end = intervals.vertex(), share = Math.min(1, Math.abs(aim - weight) / (Math.abs(end[key] - weight) || 1));
      const last = await this.one("weights", { ...this.at(), query, change: Array.from(end, (one, at) => share * (one - weights[at])) }, "putting the row back");
      if (!last) return;
      this.byHand(at, query, last.moved);
      await this.told(`Row ${query} with ${listed(last.moved.weights[key])} on “${plain(keys[key])}”: the head's output changes by ${sized(last.moved.output_error)}. Put back into the model:`, `By hand: row ${query}, ${named(at)}; ${listed(last.moved.weights[key])} on “${plain(keys[key])}”, the others match`, last.moved, at, ["raw", CHANGED], slider);
    });
    this.hand.replaceChildren(words, range, value, this.button("Take this key out", () => { slider.value = 0; value.textContent = "0: the others share its weight and are not moved to match"; this.weigh(query, key, 0); }), both);
    this.hand.hidden = false;
    this.key = key;
    this.placeHand();
    this.hand.scrollIntoView({ block: "nearest" });
    slider.focus({ preventScroll: true });
  }

  // A weight that may leave its range: the other keys of the row share what is left.
  async weigh(query, key, aim, hand) {
    const at = this.viewer.now(), name = plain(this.row.keys[key]), last = await this.one("weight", { ...this.at(), query, key, weight: aim }, "putting the row into the model");
    if (!last) return;
    this.byHand(at, query, last.broken);
    await this.told(`Row ${query} with ${listed(aim)} on “${name}” and the rest shared by its other keys: the head's output of this row changes by ${sized(last.broken.output_error)}. Put into the model:`, `${hand ? "By hand" : "Break"}: row ${query}, ${named(at)}; ${listed(aim)} on “${name}”, the others share the rest`, last.broken, at, ["raw", CHANGED], hand);
  }

  // What repeats a row that was changed by hand.
  byHand({ choices }, query, { weights, layer }) {
    this.viewer.addLayer(choices, CHANGED, layer, { [`${CHANGED} − raw`]: [CHANGED, "raw"] });
    this.did = { at: choices, other: `head.attention.index_copy(0, torch.tensor([${query}]), torch.tensor([[${weights.map((one) => Number(one.toPrecision(12))).join(", ")}]], dtype=torch.float64))` };
  }

  // A row as a slide: its largest keys with weight and range, what must stay the same, and where it comes from.
  slide() {
    const { proven, keys, query } = this.row || {};
    if (!proven) { this.complain(LOCK); return; }
    const after = this.after?.row === query && this.after.choices === this.viewer.now().choices ? this.after : null;
    const { choices } = this.viewer.now(), { layer, head } = choices, colours = look(), { page } = colours, lines = [...this.viewerRoot.querySelectorAll(".row-keys tbody tr[data-lo]")];
    const count = this.certified.key.length, all = lines.slice(0, 12).map(({ dataset: one }) => ({ name: plain(keys[one.key]), key: one.key, weight: Number(one.weight), lo: Number(one.lo), hi: Number(one.hi), to: after?.weights[one.key] }));
    const sorted = this.viewerRoot.querySelector("[aria-label='Order of keys']").value === "weight" ? "largest" : "first", most = Math.max(...all.map((one) => Math.max(one.hi, one.to ?? 0)), 0.01), at = (value) => 320 + 560 * value / most;
    const escaped = (words) => words.replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`), text = (x, y, words, more = "") => `<text x="${x}" y="${y}" ${more}>${escaped(words)}</text>`, other = colours.series[1], bottom = 196 + 36 * all.length;
    const line = ({ name, key, weight, lo, hi, to }, number) => { const y = 200 + 36 * number; return `${text(300, y + 6, `${name.slice(0, 18)} · ${key}`, 'text-anchor="end"')}<rect x="${at(lo)}" y="${y - 7}" width="${Math.max(2, at(hi) - at(lo))}" height="14" rx="3" fill="${page.accent}" opacity=".35"/><circle cx="${at(weight)}" cy="${y}" r="6" fill="${page.accent}"/>${to === undefined ? "" : `<path d="M${at(to)} ${y - 9}l9 9l-9 9l-9 -9z" fill="none" stroke="${other}" stroke-width="3"/>`}${text(910, y + 6, listed(weight))}${text(1000, y + 6, interval(lo, hi))}${to === undefined ? "" : text(1180, y + 6, listed(to), `fill="${other}"`)}`; };
    const ticks = [0, 0.5, 1].map((part) => `<path d="M${at(part * most)} ${bottom - 14}v8" stroke="${page.ink}"/>${text(at(part * most), bottom + 14, String(Number((part * most).toPrecision(2))), 'text-anchor="middle" font-size="16"')}`).join("");
    const caption = [`${called(this.model.value)}, layer ${layer}, head ${head}; ${count > all.length ? `the ${all.length} ${sorted} of ${count} keys` : `all ${count} keys`}, each with its position.`, `Dot: weight. Bar: the values that it can take, if the other weights move to match, while this stays:`, (this.certified.kept.split(" (")[0])];
    const names = [[910, "weight"], [1000, "range"], ...(after ? [[1180, "changed"]] : [])].map(([x, words]) => text(x, 178, words, 'font-size="16"')).join("");
    const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="1280" height="720" viewBox="0 0 1280 720" font-family="sans-serif" font-size="19" fill="${page.ink}"><rect width="1280" height="720" fill="${page.surface}"/>${text(60, 60, `What “${plain(keys[query])}” (token ${query}) attends to`, 'font-size="32"')}${caption.map((words, number) => text(60, 96 + 26 * number, words)).join("")}${names}${all.map(line).join("")}<path d="M320 ${bottom - 14}H880" stroke="${page.ink}"/>${ticks}${after ? text(60, 672, `Diamond: the row after the last change (${after.done}).`, `font-size="17" fill="${other}"`) : ""}${text(60, 702, "identilens", 'font-size="17"')}</svg>`;
    save("row.svg", svg, "image/svg+xml");
  }

  csv() {
    const rows = [...this.viewerRoot.querySelectorAll(".row-keys tr[data-key]")];
    if (!rows.length) { this.complain(LOCK); return; }
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
    // What must stay the same.
    const { outcome, tolerance } = (row !== null && this.certified) || {}, how = outcome ? { outcome, tolerance } : {};
    const certainty = `idl.certify(lens, [${text}], layers=[${layer}], heads=[${head}], queries=[${query}], kind="${kind}"${named({ ...how, ...this.cut })})`;
    const command = `identilens certify --model ${quoted(this.model.value)} --text ${quoted(this.text.value)} --layers ${layer} --heads ${head} --kind ${kind} --queries ${query}${options({ ...how, ...start.load, ...this.cut })} --out run\n`;
    const python = `import identilens as idl\n\nlens = idl.load(${model}${named(start.load)})\naudit = idl.audit(lens, [${text}], layers=[${layer}], matrices=True${named(this.cut)})\nmaps = audit.view(text=0, layer=${layer}, head=${head}, kind="${kind}")\nmaps.to_html("maps.html")\ncertainty = ${certainty}\ncertainty.show()\n`;
    const again = this.again(text, named), did = this.did?.options ? `identilens ${this.did.name} --model ${quoted(this.model.value)} --text ${quoted(this.text.value)} --kind ${kind}${flags({ ...this.did.options, ...start.load, ...this.cut })} --out changed\n` : "";
    const part = (words, name, content) => made("div", {}, this.button(words, () => save(name, content, "text/plain")), made("pre", { textContent: content }));
    this.put(part("Save the command", "view.sh", command + did), part("Save the Python lines", "view.py", python + again));
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
