// The plot of cost over time: stacked columns by uPlot, read by pointer or arrow keys. Figures come as exact text
// in data-plot; numbers are made of them only to draw. Drawn again when a live update, the theme or the width changes.
(() => {
  let drawn = null;

  const styles = () => getComputedStyle(document.documentElement);
  const colour = (name) => (styles().getPropertyValue(`--kind-${name}`) || styles().getPropertyValue(`--${name}`)).trim();

  function stacked(series) {
    const below = new Array(series[0].values.length).fill(0);
    return series.map((one) => one.values.map((text, i) => (below[i] += Math.max(0, Number(text)))));
  }

  function reading(data, place) {
    const box = document.getElementById("plot-reading");
    if (!box) return;
    if (place == null) { box.textContent = ""; return; }
    const said = data.series
      .filter((one) => Number(one.values[place]) !== 0)
      .map((one) => `${one.name} ${Number(one.values[place]).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`);
    const until = data.every === "day" ? "" : ` (${data.every})`;
    box.textContent = `${data.days[place]}${until}: ${said.join(", ") || "nothing"} ${said.length ? data.unit : ""}`;
  }

  function draw() {
    const frame = document.getElementById("plot");
    const room = document.getElementById("plot-drawn");
    if (!frame || !room || !window.uPlot) return;
    const text = frame.dataset.plot;
    const width = Math.max(200, room.clientWidth);
    const look = `${text}|${width}|${colour("t0")}`;
    if (drawn && drawn.look === look && drawn.room === room && room.firstChild) return;
    if (drawn) drawn.plot.destroy();
    room.textContent = "";
    const data = JSON.parse(text);
    const xs = data.days.map((_, i) => i);
    const tops = stacked(data.series);
    // The tallest is drawn first, the others over it: each shows its own part.
    const order = data.series.map((_, i) => i).reverse();
    const bars = uPlot.paths.bars({ size: [0.8, 46], align: 0 });
    const ink = colour("dim"), line = colour("line");
    const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
    const options = {
      width, height: width < 500 ? 200 : 240,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [-0.6, xs.length - 0.4] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      axes: [
        { stroke: ink, size: 32, grid: { show: false }, ticks: { stroke: line }, space: 64, incrs: [1, 2, 5, 7, 10, 14, 20, 30, 60],
          values: (_, places) => places.map((i) => (Number.isInteger(i) && data.days[i] ? data.days[i].slice(data.every === "month" ? 0 : 5, data.every === "month" ? 7 : 10) : "")) },
        { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, size: 56, values: (_, ticks) => ticks.map((v) => short.format(v)) },
      ],
      series: [{}, ...order.map((i) => ({ label: data.series[i].name, fill: colour(data.series[i].colour), stroke: colour("card"), width: 1, paths: bars, points: { show: false } }))],
      hooks: { setCursor: [(plot) => reading(data, plot.cursor.idx)] },
    };
    const plot = new uPlot(options, [xs, ...order.map((i) => tops[i])], room);
    drawn = { plot, look, room, data };
  }

  document.addEventListener("keydown", (event) => {
    if (!drawn || event.target.id !== "plot" || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    const last = drawn.data.days.length - 1, at = drawn.plot.cursor.idx;
    if (event.key === "Escape") { drawn.plot.setCursor({ left: -10, top: -10 }); return; }
    const next = { ArrowLeft: at == null ? last : Math.max(0, at - 1), ArrowRight: at == null ? 0 : Math.min(last, at + 1), Home: 0, End: last }[event.key];
    drawn.plot.setCursor({ left: drawn.plot.valToPos(next, "x"), top: 10 });
  });
  // A live update brings the table of figures closed: keep it as the reader left it.
  let opened = false;
  document.addEventListener("htmx:beforeSwap", () => { opened = !!document.querySelector("#plot-table[open]"); });
  document.addEventListener("htmx:afterSettle", () => { const table = document.getElementById("plot-table"); if (table && opened) table.open = true; });
  document.addEventListener("DOMContentLoaded", draw);
  document.addEventListener("htmx:afterSettle", draw);
  document.addEventListener("click", (event) => { if (event.target.closest("#theme")) setTimeout(draw, 0); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); });
})();
