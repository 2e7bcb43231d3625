// The list of jobs: filters apply as they change, columns are chosen, several jobs are selected.
(() => {
  const COLUMNS = "fairway-columns";
  const root = document.documentElement;

  // Empty filters stay out of the address.
  const isFilters = (element) => element && element.matches && element.matches("form[data-filters]");
  document.addEventListener("htmx:configRequest", (event) => {
    if (!isFilters(event.target)) return;
    const asked = event.detail.parameters;
    for (const name of Object.keys(asked)) if (!asked[name]) delete asked[name];
  });
  document.addEventListener("formdata", (event) => {
    if (!isFilters(event.target)) return;
    for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
  });

  // Columns: theme.js hid those that are not wanted before anything was drawn.
  const hidden = () => (root.dataset.hide || "").split(" ").filter(Boolean);
  let choosing = false; // the menu stays open when the list is drawn again
  document.addEventListener("toggle", (event) => { if (event.target.matches("[data-columns]")) choosing = event.target.open; }, true);
  const showColumns = () => {
    for (const menu of document.querySelectorAll("[data-columns]")) {
      menu.hidden = false;
      menu.open = choosing;
      for (const box of menu.querySelectorAll("input")) box.checked = !hidden().includes(box.value);
    }
  };
  document.addEventListener("change", (event) => {
    const menu = event.target.closest("[data-columns]");
    if (!menu) return;
    event.stopPropagation();
    const off = [...menu.querySelectorAll("input:not(:checked)")].map((box) => box.value);
    root.dataset.hide = off.join(" ");
    try { localStorage.setItem(COLUMNS, root.dataset.hide); } catch { /* not remembered, then */ }
  }, true);

  // Selected jobs stay selected when the list is drawn again.
  const picked = new Set();
  const boxes = () => [...document.querySelectorAll("[data-bulk] td.pick input")];
  const tell = () => {
    const form = document.querySelector("[data-bulk]");
    const text = form && form.querySelector("[data-selected]");
    if (!text) return;
    const count = boxes().filter((box) => box.checked).length;
    text.textContent = count ? `${count} selected` : "Select jobs to change them";
    for (const button of form.querySelectorAll(".bulk button")) button.disabled = !count;
    const all = form.querySelector("[data-all]");
    all.checked = count > 0 && count === boxes().length;
    all.indeterminate = count > 0 && !all.checked;
  };
  const restore = () => {
    for (const box of boxes()) box.checked = picked.has(box.name);
    showColumns();
    tell();
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) for (const box of boxes()) box.checked = event.target.checked;
    else if (!event.target.matches("td.pick input")) return;
    picked.clear();
    for (const box of boxes()) if (box.checked) picked.add(box.name);
    tell();
  });
  document.addEventListener("htmx:afterSwap", (event) => { if (event.target.id === "jobs-part") restore(); });
  window.addEventListener("pageshow", () => { picked.clear(); restore(); });
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
})();
