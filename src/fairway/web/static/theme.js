// Before anything is drawn: what the visitor chose, or else what the system says.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("fairway-theme"); } catch { /* private windows may forbid it */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
