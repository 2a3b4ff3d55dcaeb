// The explorer's page: the start token, the columns, and the address that holds what they show.
const root = document.getElementById("panes"), steps = document.querySelector(".lesson .bar"), columns = document.getElementById("columns"), entry = document.getElementById("entry"), panes = [];

// The printed address brings the token. It is kept for this tab alone, and never stands in an address to be shared.
function takeToken(text) {
  const state = new URLSearchParams(text), given = state.get("token");
  if (given === null) return false;
  sessionStorage.setItem("token", given);
  state.delete("token");
  history.replaceState(null, "", `#${state}`);
  return true;
}

function remember() {
  const state = new URLSearchParams(panes.flatMap((pane) => Object.entries(pane.shown())));
  history.replaceState(null, "", `#${state}`);
}

function addPane(shown) {
  const pane = new Pane(panes.length, shown, remember);
  panes.push(pane);
  root.append(pane.root);
  if (!pane.complaint.textContent) pane.measure();
}

function removePane() {
  const last = panes.pop();
  last.stop();
  last.root.remove();
}

function arrange() {
  columns.setAttribute("aria-pressed", String(panes.length > 1));
  root.classList.toggle("two", panes.length > 1);
  remember();
}

// Columns as the address has them: a model, a text and a view for each.
function restore() {
  const state = new URLSearchParams(location.hash.slice(1)), [models, texts, views] = ["model", "text", "view"].map((name) => state.getAll(name));
  while (panes.length) removePane();
  if (models.length) models.slice(0, 2).forEach((model, at) => addPane({ model, text: texts[at] ?? "", view: views[at] ?? "" }));
  else addPane();
  arrange();
}

// The tour: each step is done in the first column, and says what to see there.
const lesson = document.getElementById("lesson"), teach = document.getElementById("teach"), step = document.getElementById("step");
const STEPS = {
  look: [({ place }) => `The small squares are the heads, layer by layer. ${place ? `Layer ${place.layer}, head ${place.head} is open: by a first estimate the model's answer changes most without it. ` : ""}Choose another one by a tap, a click or the arrow keys.`, async (pane) => { await pane.strongest(); pane.viewerRoot.scrollIntoView({ block: "start" }); }],
  click: [() => "A row is locked: its keys are listed. The bar of a key is the range of values that its weight can take while what stands above stays, if the other weights move to match. A click on a key gives its weight a slider.", (pane) => pane.forAnswer(), (pane) => pane.viewerRoot.querySelector(".viewer-stage").scrollIntoView({ block: "start" })],
  exchange: [() => "The row has other weights now, chosen to keep the answer: the tour has set how nearly. The coloured texts show where its attention was and is; the table, what the model says.", async (pane) => { await pane.forAnswer(); await pane.exchanged(); }, (pane) => pane.seek()],
  break: [({ strong, inside }) => `“${plain(strong)}” was taken out of the row: its strongest key, by an estimate. ${inside ? "0 lies in its range, but a range holds only if the other weights move to match; here they share its weight in proportion" : "0 lies outside of its range"}. Compare this line of the table with the exchange. If both change little, go on from 3 with another row or head.`, async (pane) => { await pane.forAnswer(); await pane.broken(); }, (pane) => pane.seek()],
};

function teaching(on) {
  lesson.hidden = !on;
  teach.setAttribute("aria-pressed", String(on));
  try { localStorage.setItem("lesson", on ? "" : "learnt"); } catch { /* Browsers may forbid it: the lesson is shown again. */ }
}

async function open() {
  token = sessionStorage.getItem("token") || "";
  try {
    start = await ask("start", {});
  } catch (error) {
    entry.hidden = false;
    entry.querySelector("[role=alert]").textContent = token ? error.message : "";
    return;
  }
  entry.hidden = true;
  columns.hidden = teach.hidden = false;
  teaching(localStorage.getItem("lesson") === "");
  restore();
}

entry.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = entry.querySelector("input").value.trim();
  sessionStorage.setItem("token", new URLSearchParams(given.split("#").pop()).get("token") ?? given);
  open();
});
// What is scrolled to stands below the steps of the tour.
new ResizeObserver(() => document.documentElement.style.setProperty("--steps", `${steps.offsetHeight}px`)).observe(steps);
teach.addEventListener("click", () => teaching(lesson.hidden));
document.getElementById("learnt").addEventListener("click", () => teaching(false));
lesson.addEventListener("click", async ({ target }) => {
  const [words, act, show] = STEPS[target.dataset.step] ?? [];
  if (!act) return;
  const [pane] = panes;
  if (!pane.held) { step.textContent = "Wait until the text is measured, or type one."; return; }
  // A step that is being worked out is not dropped by the next one.
  if (lesson.dataset.busy) return;
  const before = pane.changes.length, changes = ["exchange", "break"].includes(target.dataset.step);
  step.textContent = changes ? "Being worked out: go on when this says what was done." : "";
  lesson.dataset.busy = changes ? "yes" : "";
  try { await act(pane); } finally { lesson.dataset.busy = step.textContent = ""; }
  // What was given up, or could not be done, says so by itself.
  if (!changes || pane.changes.length > before) step.textContent = words(pane);
  if (!show || (changes && pane.changes.length === before)) return;
  // The steps are as high as their words by now.
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await show(pane);
});
columns.addEventListener("click", () => {
  if (panes.length > 1) removePane(); else addPane();
  arrange();
});
window.addEventListener("hashchange", () => {
  if (takeToken(location.hash.slice(1))) open(); else if (panes.length) restore();
});
dark.addEventListener("change", () => panes.forEach((pane) => pane.viewer?.redraw()));
takeToken(location.hash.slice(1));
open();
