// Before anything is drawn: what the visitor chose, or else what the system says.
(() => {
  const chosen = localStorage.getItem("fairway-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
