"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-figure]")];
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? true : undefined,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const drawn = new Map();
  const draw = (plot) => {
    if (drawn.has(plot)) return drawn.get(plot);
    const spec = specs[plot.dataset.figure];
    // a finger that scrolls the page must not zoom a figure: there the buttons zoom
    if (touch) spec.layout.dragmode = false;
    plot.style.minHeight = "";
    drawn.set(plot, Plotly.newPlot(plot, spec.data, spec.layout, config));
    return drawn.get(plot);
  };
  // what is looked at first, the rest one at a time while nobody waits; their places are kept meanwhile
  plots.forEach((p) => { p.style.minHeight = `${specs[p.dataset.figure].layout.height}px`; });
  const seen = new IntersectionObserver((entries) => {
    entries.filter((e) => e.isIntersecting).forEach((e) => { seen.unobserve(e.target); draw(e.target); });
  }, { rootMargin: "300px" });
  plots.forEach((p) => seen.observe(p));
  const idle = window.requestIdleCallback ?? ((f) => setTimeout(f, 50));
  const next = (k) => {
    if (k < plots.length) draw(plots[k]).then(() => idle(() => next(k + 1)));
    else document.documentElement.dataset.ready = "true";
  };
  idle(() => next(0));
  // paper has a width of its own, and nobody can open a closed list on it
  const PAPER = 680;
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((d) => { d.open = true; });
    plots.forEach((p) => { draw(p); Plotly.relayout(p, { width: PAPER }); });
  });
  addEventListener("afterprint", () => {
    opened.forEach((d) => { d.open = false; });
    plots.forEach((p) => Plotly.relayout(p, { width: null, autosize: true }));
  });
})();
