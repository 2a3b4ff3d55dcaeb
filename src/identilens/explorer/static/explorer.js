// The explorer's page: the start token, the columns, and the address that holds what they show.
const root = document.getElementById("panes"), columns = document.getElementById("columns"), runs = document.getElementById("runs"), entry = document.getElementById("entry"), panes = [];

// The printed address brings the token. It is kept for this tab alone, and never stands in an address to be shared.
function takeToken(text) {
  const state = new URLSearchParams(text), given = state.get("token");
  if (given === null) return false;
  sessionStorage.setItem("token", given);
  state.delete("token");
  history.replaceState(null, "", `#${state}`);
  return true;
}

// Runs to open, each in a page of its own: the key in its address opens its report and nothing else.
function listRuns(addresses) {
  runs.hidden = !addresses;
  const names = Object.entries(addresses || {});
  runs.replaceChildren(made("option", { value: "", textContent: names.length ? "open a run…" : "no runs yet" }), ...names.map(([name, address]) => made("option", { value: address, textContent: name })));
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
  columns.hidden = false;
  listRuns(start.runs);
  restore();
}

entry.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = entry.querySelector("input").value.trim();
  sessionStorage.setItem("token", new URLSearchParams(given.split("#").pop()).get("token") ?? given);
  open();
});
runs.addEventListener("change", () => {
  if (runs.value) window.open(runs.value, "_blank", "noopener");
  runs.value = "";
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
