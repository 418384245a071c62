"use strict";
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const plot = document.getElementById("timeline-plot");
  const done = () => { document.documentElement.dataset.ready = "true"; };
  // nobody can open a closed list on paper
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((d) => { d.open = true; });
    if (plot && data) draw(680);
  });
  addEventListener("afterprint", () => {
    opened.forEach((d) => { d.open = false; });
    if (plot && data) draw();
  });
  if (!plot || !data) { done(); return; }

  const COLOURS = ["#5b6673", "#b4531a", "#6f48b3", "#7a6a12", "#b3261e", "#0f7a5a"], SECOND = "#46505c";
  const ROW = 20, HEAD = 22, LABEL_MAX = 150;
  const SVG = "http://www.w3.org/2000/svg";
  const stepOf = document.getElementById("timeline-step"), rankOf = document.getElementById("timeline-rank");
  const words = document.getElementById("timeline-words"), tip = document.getElementById("tip");
  let view = null, scale = null;

  const node = (tag, attributes, text) => {
    const found = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (text !== undefined) found.textContent = text;
    return found;
  };
  const time = (ns) => {
    const a = Math.abs(ns);
    const [v, unit] = a >= 1e6 ? [ns / 1e6, "ms"] : [ns / 1e3, "µs"];
    return `${v.toLocaleString("en", { maximumFractionDigits: Math.abs(v) < 20 ? 2 : 1 })} ${unit}`.replace("-", "−");
  };
  const shortTrack = (name) => name.replace(/^host ranges 1$/, "ranges").replace(/^(host(?: \d+)?) ranges [2-9]\d*$/, "")
    .replace(/^host CUDA calls$/, "CUDA calls").replace(/^GPU \d+ stream/, "GPU stream");
  const windows = () => data.sides.map((side) => ({ name: side.name,
    window: (side.ranks[rankOf.value] ?? [])[Number(stepOf.value)] })).filter((s) => s.window);

  function draw(forced) {
    const sides = windows();
    const width = forced ?? Math.max(plot.clientWidth, 300);
    const left = Math.min(LABEL_MAX, width * 0.24), right = width - 8;
    const longest = Math.max(...sides.map((s) => s.window.length), 1);
    view ??= [0, longest];
    scale = { left, right, longest };
    const x = (t) => left + ((t - view[0]) / (view[1] - view[0])) * (right - left);
    const visible = (a, b) => b >= view[0] && a <= view[1];
    let y = 4;
    const parts = [];
    for (const { name, window } of sides) {
      parts.push(node("text", { x: 0, y: y + 14, class: "side" }, `${name}: ${window.title}, ${time(window.length)}`));
      y += HEAD;
      const top = y;
      window.tracks.forEach((track, k) => {
        const label = shortTrack(track), chars = Math.floor(left / 6.6);
        parts.push(node("text", { x: 0, y: top + k * ROW + 14, class: "soft" }, label.length > chars ? `${label.slice(0, chars - 1)}…` : label));
        parts.push(node("line", { x1: left, x2: right, y1: top + (k + 1) * ROW - 1, y2: top + (k + 1) * ROW - 1, class: "grid" }));
      });
      for (const [a, s, b, t] of window.flows) {
        if (!visible(Math.min(s, t), Math.max(s, t))) continue;
        const clip = (v) => Math.min(Math.max(x(v), left), right);
        parts.push(node("line", { x1: clip(s), y1: top + a * ROW + ROW - 3, x2: clip(t), y2: top + b * ROW + 2, class: "flow" }));
      }
      window.bars.forEach(([kind, track, title, start, length, detail], k) => {
        if (!visible(start, start + length)) return;
        const from = Math.max(x(start), left), to = Math.min(x(start + length), right);
        const size = Math.max(to - from, 0.8), at = top + track * ROW + 1;
        const colour = kind === 0 && k % 2 ? SECOND : COLOURS[kind];
        const bar = node("rect", { x: from, y: at, width: size, height: ROW - 4, fill: colour, rx: size > 6 ? 2 : 0, class: "piece" });
        bar.dataset.tip = `${data.names[title]}\n${data.kinds[kind]}, ${time(length)}, at ${time(start)}${detail === undefined ? "" : `\n${data.names[detail]}`}`;
        parts.push(bar);
        const chars = Math.floor((size - 6) / 6.2), full = data.names[title];
        if (chars >= 4) parts.push(node("text", { x: from + 3, y: at + 12, class: "in" }, full.length > chars ? `${full.slice(0, chars - 1)}…` : full));
      });
      y = top + window.tracks.length * ROW;
      for (const t of [0, window.length]) if (visible(t, t)) parts.push(node("line", { x1: x(t), x2: x(t), y1: top, y2: y, class: "edge" }));
      y += 10;
    }
    const span = view[1] - view[0], rough = span / 6, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
    for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
      parts.push(node("line", { x1: x(t), x2: x(t), y1: y - 6, y2: y, class: "edge" }));
      parts.push(node("text", { x: Math.min(x(t), right - 20), y: y + 13, "text-anchor": "middle", class: "soft" }, time(t)));
    }
    const svg = node("svg", { width, height: y + 20, viewBox: `0 0 ${width} ${y + 20}`, "aria-hidden": "true" });
    svg.append(...parts);
    plot.replaceChildren(svg);
    const used = new Set(sides.flatMap((s) => s.window.bars.map((b) => b[0])));
    document.getElementById("timeline-legend").replaceChildren(...data.kinds.map((kind, k) => {
      const entry = document.createElement("span"), mark = document.createElement("i");
      mark.className = "area"; mark.style.background = COLOURS[k];
      entry.append(mark, kind); entry.hidden = !used.has(k);
      return entry;
    }));
    words.replaceChildren(...sides.map(({ name, window }) => {
      const line = document.createElement("p");
      line.textContent = `${name}: ${window.words}.`;
      return line;
    }));
  }

  const zoom = (factor, share = 0.5) => {
    const longest = scale.longest;
    if (!factor) { view = null; draw(); return; }
    const size = Math.min(Math.max((view[1] - view[0]) * factor, 100), longest * 1.1), centre = view[0] + (view[1] - view[0]) * share;
    view = [centre - size * share, centre + size * (1 - share)];
    draw();
  };
  const move = (share) => { const d = (view[1] - view[0]) * share; view = [view[0] + d, view[1] + d]; draw(); };
  document.querySelectorAll("[data-zoom]").forEach((b) => b.addEventListener("click", () => zoom(Number(b.dataset.zoom))));
  [stepOf, rankOf].forEach((s) => s.addEventListener("change", () => { view = null; draw(); }));
  plot.addEventListener("keydown", (e) => {
    const known = { "+": () => zoom(0.5), "-": () => zoom(2), "0": () => zoom(0), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };
    if (known[e.key]) { known[e.key](); e.preventDefault(); }
  });
  const timeAt = (e) => {
    const px = e.clientX - plot.getBoundingClientRect().left;
    return view[0] + ((px - scale.left) / (scale.right - scale.left)) * (view[1] - view[0]);
  };
  let begun = null, mark = null;
  plot.addEventListener("pointerdown", (e) => {
    if (e.pointerType === "touch") return;  // a finger that scrolls the page must not zoom: there the buttons do
    begun = { t: timeAt(e), x: e.clientX }; plot.setPointerCapture(e.pointerId);
    mark = node("rect", { y: 0, height: "100%", class: "select" }); plot.firstChild.append(mark);
  });
  plot.addEventListener("pointermove", (e) => {
    if (begun) {
      const box = plot.getBoundingClientRect(), a = begun.x - box.left, b = e.clientX - box.left;
      mark.setAttribute("x", Math.min(a, b)); mark.setAttribute("width", Math.abs(b - a));
    }
    const text = document.elementFromPoint(e.clientX, e.clientY)?.dataset?.tip;
    tip.hidden = !text;
    if (text) {
      tip.textContent = text;
      tip.style.left = `${Math.min(e.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
    }
  });
  plot.addEventListener("pointerup", (e) => {
    if (begun && Math.abs(e.clientX - begun.x) > 5) { const t = timeAt(e); view = [Math.min(begun.t, t), Math.max(begun.t, t)]; draw(); }
    else mark?.remove();
    begun = mark = null;
  });
  plot.addEventListener("pointerleave", () => { tip.hidden = true; });
  plot.addEventListener("dblclick", () => zoom(0));
  let last = 0;
  new ResizeObserver(() => { if (plot.clientWidth !== last) { last = plot.clientWidth; draw(); done(); } }).observe(plot);
})();
