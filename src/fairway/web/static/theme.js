// Before anything is drawn: the theme and the columns of jobs that the visitor chose.
(() => {
  const root = document.documentElement;
  const read = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const chosen = read("fairway-theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  root.dataset.hide = read("fairway-columns") || "";
})();
