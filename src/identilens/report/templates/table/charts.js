"use strict";
// Lines with marks, a colour and a mark for each.
(() => {
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];

  function drawChart(chart, number) {
    const element = document.getElementById(`chart-${number}`), { series } = Page.theme();
    const rows = Math.ceil(chart.lines.length / (element.clientWidth > 700 ? 3 : 1)), room = 62 + 21 * rows;
    const traces = chart.lines.map((line, index) => ({
      type: "scatter", mode: "lines+markers", name: Page.escape(line.name), x: line.points.map((point) => point[0]), y: line.points.map((point) => point[1]),
      line: { color: series[index % series.length], width: 1.5 }, marker: { symbol: symbols[index % symbols.length], size: 7 },
      hovertemplate: `${Page.escape(line.name)}<br>%{x:.4g}: %{y:.4g}<extra></extra>`,
    }));
    const places = [...new Set(chart.lines.flatMap((line) => line.points.map((point) => point[0])))].sort((one, other) => one - other);
    Page.draw(element, traces, {
      height: 320 + room, showlegend: chart.lines.length > 1, hovermode: "closest", margin: { l: 66, r: 16, t: 12, b: room },
      legend: { orientation: "h", x: 0, xanchor: "left", y: -0.2, yanchor: "top", font: { size: 12 }, bgcolor: "rgba(0,0,0,0)" },
      // A logarithmic axis holds a few sizes, which are more useful to read than powers of ten.
      xaxis: Page.axis(Page.escape(chart.x), chart.log_x ? { type: "log", tickvals: places, ticktext: places.map(String) } : {}),
      yaxis: Page.axis(Page.escape(chart.y), chart.log_y ? { type: "log", exponentformat: "power" } : {}),
    });
  }

  Page.onDraw(() => Page.data.charts.forEach(drawChart));
})();
