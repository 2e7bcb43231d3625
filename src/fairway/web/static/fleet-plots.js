// Draws every [data-plot]: GPUs there were and GPUs used. Data comes from the address the element names.
(() => {
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // 24 hours, and the day where one begins.
  const hour = (seconds) => {
    const at = new Date(seconds * 1000);
    if (at.getUTCHours() || at.getUTCMinutes()) return at.toISOString().slice(11, 16);
    return at.toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" });
  };

  const draw = (where, data) => {
    drawn.get(where)?.destroy();
    where.replaceChildren();
    const says = document.getElementById(`${where.id}-says`);
    const last = data.used.reduce((found, value, i) => (value === null ? found : i), -1);
    if (last < 0) {
      if (says) says.textContent = "Nothing was measured yet: the first hour shows up in a few minutes.";
      return;
    }
    const used = data.used.filter((value) => value !== null);
    const total = data.total.filter((value) => value !== null);
    const part = used.reduce((a, b) => a + b, 0) / Math.max(1, total.reduce((a, b) => a + b, 0));
    if (says) {
      const most = Math.max(...used);
      says.textContent = `On average ${Math.round(part * 100)} % in use, at most ${Math.round(most)} of ${Math.round(Math.max(...total))} GPUs in one hour. Hours are UTC.`;
    }
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    drawn.set(where, new uPlot({
      width: where.clientWidth,
      height: where.clientHeight,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { y: false, drag: { x: false } },
      legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.08)] } },
      axes: [{ ...axis, values: (_, marks) => marks.map(hour), space: 64 }, { ...axis, size: 44 }],
      series: [
        {},
        { label: "there", stroke: colour("--dim"), width: 1.5, dash: [5, 4], points: { show: false } },
        { label: "used", stroke: colour("--used"), fill: colour("--used") + "33", width: 2, points: { show: used.length < 3, size: 6 } },
      ],
    }, [data.time, data.total, data.used], where));
  };

  const load = async (where) => {
    try {
      const answer = await fetch(`${where.dataset.plot}?days=${where.dataset.days}`, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      where.plotted = await answer.json();
      draw(where, where.plotted);
    } catch {
      const says = document.getElementById(`${where.id}-says`);
      if (says) says.textContent = "The plot could not be loaded; it is tried again in a minute.";
    }
  };

  const all = () => document.querySelectorAll("[data-plot]");
  const again = () => { for (const where of all()) if (where.plotted) draw(where, where.plotted); };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-plot-days]");
    if (button) {
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      const where = button.closest("section").querySelector("[data-plot]");
      where.dataset.days = button.dataset.plotDays;
      load(where);
    }
    if (event.target.closest("#theme")) setTimeout(again);
  });
  let later = 0;
  addEventListener("resize", () => { clearTimeout(later); later = setTimeout(again, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  setInterval(() => { if (!document.hidden) for (const where of all()) load(where); }, 60000);
  for (const where of all()) load(where);
})();
