// What pointers, wheel and keys do to a map: read a cell, lock its row, zoom and pan; heads are left to the viewer.
function gestures(panel, { point, lock, head, repaint, state }) {
  const { canvas } = panel, held = new Map();
  let dragged = false;

  const sizes = () => [panel.queries.length, panel.keys.length];
  const pan = (across, down) => {
    panel.place.key -= across / panel.step.x;
    panel.place.query -= down / panel.step.y;
    panel.place.clamp(...sizes());
    repaint();
  };
  const spread = () => { const [a, b] = [...held.values()]; return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY); };

  canvas.addEventListener("pointerdown", (event) => {
    held.set(event.pointerId, event);
    dragged = false;
    if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (!before) { if (event.pointerType === "mouse") point(panel.cellAt(event)); return; }
    if (held.size === 2) {
      const apart = spread();
      held.set(event.pointerId, event);
      dragged = true;
      if (panel.place.by(spread() / apart, ...sizes())) repaint();
      return;
    }
    const [across, down] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (!dragged && Math.hypot(across, down) < 5) return;
    dragged = true;
    held.set(event.pointerId, event);
    if (panel.place.zoom > 1) pan(across, down);
  });
  const release = (event) => {
    if (held.delete(event.pointerId) && !dragged && event.type === "pointerup") {
      const cell = panel.cellAt(event);
      point(cell);
      if (cell) lock(cell.query);
    }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !held.size) point(null); });
  canvas.addEventListener("wheel", (event) => {
    // A page with a map in it must still scroll: the wheel is the map's once it was clicked, or with Ctrl.
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    const cell = panel.cellAt(event);
    if (cell && panel.place.by(2 ** (-event.deltaY / 240), ...sizes(), cell.across, cell.down)) { event.preventDefault(); repaint(); }
  }, { passive: false });

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const { cell, row } = state();
    if (move && event.shiftKey) pan(-move[1] * 60, -move[0] * 60);
    else if (move && row !== null) head(move[0], move[1]);
    else if (move) {
      const within = (place, count) => Math.max(0, Math.min(count - 1, place)), [queries, keys] = sizes();
      const next = cell ? { query: within(cell.query + move[0], queries), key: within(cell.key + move[1], keys) } : { query: Math.ceil(panel.place.query), key: Math.ceil(panel.place.key) };
      panel.place.show(next, queries, keys);
      point(next);
    } else if (event.key === "Enter" || event.key === " ") lock(row === null ? (cell?.query ?? 0) : row);
    else if (event.key === "Escape" && row !== null) lock(row);
    else if (event.key === "+" || event.key === "=") { panel.place.by(1.4, ...sizes()); repaint(); }
    else if (event.key === "-") { panel.place.by(1 / 1.4, ...sizes()); repaint(); }
    else if (event.key === "0") { panel.place.whole(); repaint(); }
    else return;
    event.preventDefault();
  });
}
