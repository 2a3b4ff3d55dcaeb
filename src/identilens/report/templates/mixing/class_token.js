"use strict";
// What the class token takes from each position, counted from itself and from the first separator.
(() => {
  const views = Page.data.class_context;

  Page.onDraw(() => views.forEach(({ token, centre, rows }, place) => {
    const lines = Lines.unique(rows.layer).map((layer) => {
      const own = Lines.select(rows, (index) => rows.layer[index] === layer);
      return {
        name: `layer ${layer}`, x: own.offset, y: own.share,
        hover: own.offset.map((offset, index) => `layer ${layer}, position ${Page.number(offset)} from ${Page.escape(centre)}: `
          + `${Lines.percent(own.share[index])} of the context of ${Page.escape(token)}<br>${Page.plural(own.texts[index], "text")}`),
      };
    });
    Lines.draw(document.getElementById(`class-token-${place}`), lines,
      Page.axis(`Position, counted from ${Page.escape(centre)}`), Page.axis("Share of its context", { tickformat: Math.max(...rows.share) < 0.1 ? ".1%" : ".0%", rangemode: "tozero" }), { markers: false });
  }));
})();
