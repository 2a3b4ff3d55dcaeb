"use strict";
// What every report shares: its data, colours for light and dark, drawing, selectors and the tooltip.
const Page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const renders = [];

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return {
      dark: dark.matches, ink: of("--ink"), soft: of("--soft"), line: of("--line"), surface: of("--surface"),
      series: dark.matches
        ? ["#56b4e9", "#f0894a", "#35c79a", "#e3a1c8", "#f0c04a", "#b9c0c7", "#8fa8ff", "#d0d65a"]
        : ["#0072b2", "#d55e00", "#00855f", "#b0568f", "#a87400", "#3d444b", "#4a52c4", "#6d7a00"],
      // The middle is the page itself, so that zero looks like nothing.
      diverging: dark.matches
        ? [[0, "#6db3ff"], [0.25, "#2d5f92"], [0.5, "#1a1f25"], [0.75, "#9c4b2c"], [1, "#ff9b66"]]
        : [[0, "#1f5fa8"], [0.25, "#82b4da"], [0.5, "#f8f8f8"], [0.75, "#f0a080"], [1, "#b3202c"]],
      // Both ends stay readable on the page.
      sequence: dark.matches
        ? [[0, "#7b6fd0"], [0.35, "#3f9fb5"], [0.7, "#5fd080"], [1, "#fde725"]]
        : [[0, "#440154"], [0.35, "#31688e"], [0.7, "#1f9e77"], [1, "#8ab12b"]],
    };
  }

  // Plotly reads a little HTML in labels; text of ours never holds any.
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function shorten(text, limit) {
    const marks = Array.from(text);
    if (marks.length <= limit) return text;
    const end = Math.floor((limit - 1) / 3);
    return marks.slice(0, limit - 1 - end).join("") + "…" + marks.slice(marks.length - end).join("");
  }

  function number(value, digits = 3) {
    if (value === null || value === undefined || Number.isNaN(value)) return "undefined";
    if (value === 0) return "0";
    const size = Math.abs(value);
    return (size < 0.001 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)))).replaceAll("-", "−");
  }

  const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

  // A share or a correlation, where more digits than these are noise.
  const fixed = (value, digits) => (value === null ? "undefined" : value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"));

  function axis(title, more = {}) {
    const colors = theme();
    return {
      title: { text: title, font: { size: 13 }, standoff: 8 }, color: colors.ink, gridcolor: colors.line,
      linecolor: colors.line, zeroline: false, ticks: "outside", tickcolor: colors.line, ...more,
    };
  }

  // Where fingers scroll the page, dragging over a figure must not zoom it.
  const touch = window.matchMedia("(pointer: coarse)");

  function draw(element, traces, layout, config = {}) {
    const colors = theme();
    const buttons = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
    const whole = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: touch.matches ? false : "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colors.ink },
      hoverlabel: { bgcolor: colors.ink, bordercolor: colors.ink, font: { color: colors.surface } },
      modebar: { bgcolor: colors.surface, color: colors.soft, activecolor: colors.ink },
      margin: { l: 62, r: 16, t: 12, b: 48 }, ...layout,
    };
    return Plotly.react(element, traces, whole, {
      displaylogo: false, responsive: true, displayModeBar: "hover", typesetMath: false,
      // Plotly offers to send a figure to its makers; a report sends nothing anywhere.
      showSendToCloud: false, plotlyServerURL: "", modeBarButtons: [["toImage"], buttons], ...config,
    });
  }

  // Draws now, and again whenever the page's width or its colours change; returns what it was given.
  function onDraw(render) {
    renders.push(render);
    render();
    return render;
  }

  function redraw() {
    for (const render of renders) render();
  }

  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 150);
  });
  dark.addEventListener("change", redraw);

  // Fills a selector with [value, label] pairs, keeping the chosen value where it is still offered.
  function offer(select, options) {
    const before = select.value;
    select.replaceChildren(...options.map(([value, label]) => {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = label;
      return option;
    }));
    if (options.some(([value]) => String(value) === before)) select.value = before;
  }

  const tooltip = document.getElementById("tooltip");

  function showTooltip(event, text, detail) {
    const small = document.createElement("small");
    small.textContent = detail;
    tooltip.replaceChildren(text, document.createElement("br"), small);
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 6);
    const below = event.clientY + 16;
    tooltip.style.left = `${Math.max(6, left)}px`;
    tooltip.style.top = `${below + box.height < window.innerHeight ? below : event.clientY - box.height - 12}px`;
  }

  function hideTooltip() {
    tooltip.hidden = true;
  }

  window.addEventListener("error", (event) => {
    const failure = document.getElementById("failure");
    failure.textContent = `A figure could not be drawn (${event.message}). The numbers in the tables are not affected.`;
    failure.hidden = false;
  });
  window.addEventListener("scroll", hideTooltip, { passive: true });

  return { data, theme, escape, shorten, number, fixed, plural, axis, draw, onDraw, offer, showTooltip, hideTooltip };
})();
