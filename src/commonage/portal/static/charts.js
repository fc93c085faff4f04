// Charts of a workload's resource usage, drawn by uPlot. `series` carries all points so far, `points` the new ones.
"use strict";

(() => {
  const panel = document.getElementById("charts");
  const live = document.getElementById("live");
  const MAX = 2000; // points of one chart; above it, every second point of the older half is dropped
  const memory = (mib) => (mib >= 1024 ? `${Number((mib / 1024).toFixed(mib >= 102400 ? 0 : 1))} GiB` : `${Math.round(mib)} MiB`);
  const share = (part) => `${Math.round(part * 100)} %`;
  const cores = (value) => `${Number(value.toFixed(value < 10 ? 2 : 0))} ${value === 1 ? "core" : "cores"}`;
  const doubling = Array.from({ length: 24 }, (_, power) => 2 ** power); // steps that look round in MiB and GiB
  const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const second = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const instants = (_, ats, __, ___, step) => ats.map((at) => (step >= 86400 ? day : step < 60 ? second : hour).format(at * 1000));
  const kinds = {
    cpu_cores: { text: cores, tick: (value) => String(+value.toFixed(2)), limit: Number(panel.dataset.cpus) },
    memory_mib: { text: memory, tick: memory, steps: doubling, limit: Number(panel.dataset.memory) },
    gpu_utilisation: { text: share, tick: share, limit: 1 },
    gpu_memory_mib: { text: memory, tick: memory, steps: doubling, limit: 0 },
  };
  const charts = new Map();

  // A colour in a form that a canvas accepts: it resolves neither light-dark() nor variables.
  function colour(name, alpha = 1) {
    const probe = document.createElement("i");
    probe.hidden = true;
    panel.append(probe);
    probe.style.color = `var(${name})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
    probe.remove();
    return `rgb(${r} ${g} ${b} / ${alpha})`;
  }

  function options(kind, width) {
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}` };
    return {
      width,
      height: 116,
      padding: [8, 18, 0, 0], // room for half of the last time
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, __, most) => [0, Math.max(most * 1.05, kind.limit || 0, 0.01)] } },
      axes: [
        { ...axis, size: 22, space: 60, values: instants },
        { ...axis, size: 62, space: 30, values: (_, values) => values.map(kind.tick), ...(kind.steps && { incrs: kind.steps }) },
      ],
      series: [{}, { stroke: colour("--accent"), fill: colour("--accent", 0.12), width: 1.5, points: { show: false }, spanGaps: true }],
    };
  }

  function empty(figure) {
    const plot = figure.querySelector(".plot");
    if (plot.firstChild) return;
    const text = document.createElement("p");
    text.className = "plot-empty";
    text.textContent = "No figures";
    plot.append(text);
  }

  function draw(figure, data) {
    const metric = figure.dataset.metric;
    const plot = figure.querySelector(".plot");
    const kind = kinds[metric];
    charts.get(metric)?.plot?.destroy();
    charts.set(metric, { figure, data, plot: null });
    say(metric);
    plot.replaceChildren();
    if (data[0].length < 2) return empty(figure); // one point has no width
    const uplot = new uPlot(options(kind, plot.clientWidth), data, plot);
    charts.set(metric, { figure, data, plot: uplot });
    uplot.root.addEventListener("mousemove", () => say(metric));
    uplot.root.addEventListener("mouseleave", () => say(metric));
    say(metric);
  }

  function say(metric) {
    const { figure, data, plot } = charts.get(metric);
    const at = plot?.cursor.idx ?? data[0].length - 1;
    const value = data[1][at];
    const limit = kinds[metric].limit;
    const of = limit && metric !== "gpu_utilisation" ? ` of ${kinds[metric].text(limit)}` : "";
    figure.querySelector("output").textContent = value == null ? "" : `${kinds[metric].text(value)}${of}`;
  }

  function thinned([ats, values]) {
    const half = Math.floor(ats.length / 2);
    const keep = (_, index) => index >= half || index % 2 === 0;
    return [ats.filter(keep), values.filter(keep)];
  }

  function series({ metrics: all, vram_mib: vram }) {
    kinds.gpu_memory_mib.limit = vram; // known once it has a share
    panel.hidden = !Object.keys(all).length && !charts.size;
    for (const figure of panel.querySelectorAll(".chart")) {
      const data = all[figure.dataset.metric];
      if (data?.[0].length) draw(figure, data);
      else empty(figure);
    }
  }

  function points(fresh) {
    panel.hidden = false; // first, for what is hidden has no width
    for (const figure of panel.querySelectorAll(".chart")) {
      const more = fresh[figure.dataset.metric];
      const chart = charts.get(figure.dataset.metric);
      if (!more?.[0].length) continue;
      if (!chart?.plot) {
        draw(figure, chart ? [chart.data[0].concat(more[0]), chart.data[1].concat(more[1])] : more);
        continue;
      }
      chart.data = [chart.data[0].concat(more[0]), chart.data[1].concat(more[1])];
      if (chart.data[0].length > MAX) chart.data = thinned(chart.data);
      chart.plot.setData(chart.data);
      say(figure.dataset.metric);
    }
  }

  function redraw() {
    for (const { figure, data } of [...charts.values()]) draw(figure, data);
  }

  live.addEventListener("series", (event) => series(JSON.parse(event.detail.data)));
  live.addEventListener("points", (event) => points(JSON.parse(event.detail.data)));
  document.addEventListener("theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(() => {
    for (const { plot, figure } of charts.values()) plot?.setSize({ width: figure.querySelector(".plot").clientWidth, height: 116 });
  }).observe(panel);
  series({ metrics: {}, vram_mib: 0 });
})();
