// Draws every [data-plot]: GPUs in use stacked by team or pool, then idle ones and those out of service, up to the
// capacity; lines for GPUs on loan and queued. Data comes from the address that the element names. Values are read
// under the pointer or by arrow keys, and are in a table too.
(() => {
  const drawn = new Map();
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A canvas knows no color-mix(): the browser resolves it for an element.
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => { probe.className = ""; probe.style.color = ""; probe.style.setProperty("color", `var(--${name})`); return getComputedStyle(probe).color; };
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const text = (value) => (value === null || value === undefined ? "–" : number.format(value));

  const when = (seconds, byDay) => {
    const at = new Date(seconds * 1000).toISOString();
    return byDay ? at.slice(0, 10) : `${at.slice(0, 10)} ${at.slice(11, 16)}`;
  };
  const tick = (seconds) => {
    const at = new Date(seconds * 1000);
    if (at.getUTCHours() || at.getUTCMinutes()) return at.toISOString().slice(11, 16);
    return at.toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" });
  };

  // The parts of the stack from the bottom, and the lines over it.
  const partsOf = (data) => {
    const idle = data.time.map((_, i) => {
      if (data.capacity[i] === null) return null;
      const used = data.series.reduce((sum, one) => sum + one.values[i], 0);
      return Math.max(0, data.capacity[i] - used - data.out_of_service[i]);
    });
    const parts = [...data.series, { name: "idle", colour: "idle", values: idle }];
    if (data.out_of_service.some((value) => value > 0)) parts.push({ name: "out of service", colour: "drained", values: data.out_of_service });
    const lines = [{ name: "capacity", colour: "ink", values: data.capacity, hint: "GPUs in all" }];
    if (data.on_loan.some((value) => value > 0)) lines.push({ name: "on loan", colour: "lent", dash: [6, 4], values: data.on_loan, hint: "in use beyond guarantees, part of the stack" });
    if (data.queued.some((value) => value !== null)) lines.push({ name: "queued", colour: "waiting", dash: [2, 3], values: data.queued, hint: "requested by waiting jobs" });
    return { parts, lines };
  };

  const say = (where, line) => { const box = document.getElementById(`${where.id}-reading`); if (box && box.textContent !== line) box.textContent = line; };

  const summary = (data) => {
    const known = data.time.map((_, i) => i).filter((i) => data.capacity[i] !== null);
    const used = known.map((i) => data.series.reduce((sum, one) => sum + one.values[i], 0));
    const total = known.map((i) => data.capacity[i]);
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const queue = data.queued.filter((value) => value !== null);
    const waited = queue.length ? ` ${text(sum(queue) / queue.length)} queued on average.` : "";
    return `Average ${text(sum(used) / known.length)} of ${text(sum(total) / known.length)} GPUs in use (${Math.round((100 * sum(used)) / Math.max(1, sum(total)))} %), at most ${text(Math.max(...used))}.${waited} Times are UTC.`;
  };

  const read = (where, data, model, place) => {
    if (place === null || place === undefined) { say(where, where.summary); return; }
    const values = [...model.parts, ...model.lines].filter((one) => one.values[place]).map((one) => `${one.name} ${text(one.values[place])}`);
    say(where, `${when(data.time[place], data.by_day)}: ${values.join(", ") || "not observed"}`);
  };

  const legend = (where, model) => {
    const list = document.getElementById(`${where.id}-key`);
    if (!list) return;
    list.replaceChildren(...[...model.parts, ...model.lines].map((one) => {
      const item = document.createElement("li"), mark = document.createElement("span");
      mark.className = one.hint ? `line-swatch line-${one.colour}` : `swatch ${one.colour}`;
      item.append(mark, one.hint ? `${one.name} (${one.hint})` : one.name);
      return item;
    }));
  };

  const table = (where, data, model) => {
    const room = document.getElementById(`${where.id}-table`);
    if (!room) return;
    const columns = [...model.parts, ...model.lines];
    const made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
    for (const name of [data.by_day ? "Day" : "Hour", ...columns.map((one) => one.name)]) {
      const cell = document.createElement("th");
      cell.scope = "col"; cell.textContent = name;
      if (head.cells.length) cell.className = "n";
      head.append(cell);
    }
    for (let i = data.time.length - 1; i >= 0; i--) {
      const row = body.insertRow(), first = document.createElement("th");
      first.scope = "row"; first.textContent = when(data.time[i], data.by_day);
      row.append(first);
      for (const one of columns) { const cell = row.insertCell(); cell.className = "n"; cell.textContent = text(one.values[i]); }
    }
    room.replaceChildren(made);
  };

  const draw = (where, data) => {
    drawn.get(where)?.plot.destroy();
    drawn.delete(where);
    where.replaceChildren();
    if (!data.capacity.some((value) => value !== null)) {
      where.summary = "Nothing was measured in this range. The first hour appears a few minutes after the start.";
      say(where, where.summary);
      return;
    }
    const model = partsOf(data);
    where.summary = summary(data);
    say(where, where.summary);
    legend(where, model);
    const below = new Array(data.time.length).fill(0);
    const tops = model.parts.map((one) => one.values.map((value, i) => (value === null ? null : (below[i] += value))));
    const order = model.parts.map((_, i) => i).reverse(); // the tallest first, the others over it
    const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const step = data.by_day ? 86400 : 3600;
    const columns = uPlot.paths.bars({ size: [1, Infinity], align: 1, gap: where.clientWidth / data.time.length > 6 ? 1 : 0 });
    const stairs = uPlot.paths.stepped({ align: 1 });
    const plot = new uPlot({
      width: where.clientWidth,
      height: where.clientHeight,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { y: false, drag: { x: false }, points: { show: false } },
      legend: { show: false },
      scales: { x: { range: [data.time[0], data.time[data.time.length - 1] + step] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.06)] } },
      axes: [{ ...axis, values: (_, marks) => marks.map(tick), space: 64, incrs: data.by_day ? [1, 2, 5, 7, 14, 30].map((d) => d * 86400) : undefined }, { ...axis, size: 48 }],
      series: [
        {},
        ...order.map((i) => ({ label: model.parts[i].name, fill: colour(model.parts[i].colour), stroke: "transparent", width: 0, paths: columns, points: { show: false } })),
        ...model.lines.map((one) => ({ label: one.name, stroke: colour(one.colour), width: 2, dash: one.dash, paths: stairs, points: { show: false } })),
      ],
      hooks: { setCursor: [(made) => read(where, data, model, made.cursor.idx)] },
    }, [data.time, ...order.map((i) => tops[i]), ...model.lines.map((one) => one.values)], where);
    drawn.set(where, { plot, data, model });
    if (where.closest("section").querySelector("details[open]")) table(where, data, model);
  };

  const load = async (where) => {
    try {
      const query = new URLSearchParams({ window: where.dataset.window });
      if (where.dataset.by) query.set("by", where.dataset.by);
      const answer = await fetch(`${where.dataset.plot}?${query}`, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      where.plotted = await answer.json();
      draw(where, where.plotted);
    } catch {
      // What was drawn before stays.
      const again = "The chart could not be loaded. Retrying in a minute.";
      if (!where.plotted) { where.replaceChildren(); where.summary = again; }
      say(where, again);
    }
  };

  const all = () => document.querySelectorAll("[data-plot]");
  const again = () => { for (const where of all()) if (where.plotted) draw(where, where.plotted); };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-plot-by]");
    if (button) {
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      const where = button.closest("section").querySelector("[data-plot]");
      where.dataset.by = button.dataset.plotBy;
      load(where);
    }
    if (event.target.closest("#theme")) setTimeout(again);
  });
  document.addEventListener("toggle", (event) => {
    const where = event.target.matches?.(".plot-table[open]") && event.target.closest("section").querySelector("[data-plot]");
    const made = where && drawn.get(where);
    if (made) table(where, made.data, made.model);
  }, true);
  document.addEventListener("keydown", (event) => {
    const made = drawn.get(event.target);
    if (!made || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") { made.plot.setCursor({ left: -10, top: -10 }); return; }
    const last = made.data.time.length - 1, at = made.plot.cursor.idx;
    const next = { ArrowLeft: at === null || at === undefined ? last : Math.max(0, at - 1), ArrowRight: at === null || at === undefined ? 0 : Math.min(last, at + 1), Home: 0, End: last }[event.key];
    made.plot.setCursor({ left: made.plot.valToPos(made.data.time[next], "x") + 1, top: 10 });
  });
  let later = 0;
  addEventListener("resize", () => { clearTimeout(later); later = setTimeout(again, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  setInterval(() => { if (!document.hidden) for (const where of all()) load(where); }, 60000);
  for (const where of all()) load(where);
})();
