"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-figure]")];
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? true : undefined,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const draw = (plot) => {
    const spec = specs[plot.dataset.figure];
    // a finger that scrolls the page must not zoom a figure: there the buttons zoom
    if (touch) spec.layout.dragmode = false;
    return Plotly.newPlot(plot, spec.data, spec.layout, config);
  };
  // one figure at a time, so that the page answers while they come
  const next = (k) => {
    if (k < plots.length) draw(plots[k]).then(() => setTimeout(next, 0, k + 1));
    else document.documentElement.dataset.ready = "true";
  };
  next(0);
  // paper has a width of its own, and nobody can open a closed list on it
  const PAPER = 680;
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((d) => { d.open = true; });
    plots.forEach((p) => { if (p.data) Plotly.relayout(p, { width: PAPER }); });
  });
  addEventListener("afterprint", () => {
    opened.forEach((d) => { d.open = false; });
    plots.forEach((p) => { if (p.data) Plotly.relayout(p, { width: null, autosize: true }); });
  });
})();
