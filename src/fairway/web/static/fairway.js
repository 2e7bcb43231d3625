// Light and dark, and keys. Live updates: see live.py.
document.addEventListener("click", (event) => {
  if (!event.target.closest("#theme")) return;
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("fairway-theme", document.documentElement.dataset.theme);
});
