// Light and dark, and keys. Everything is delegated from the document: parts of a page come and go.
(() => {
  const root = document.documentElement;

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const keep = (theme) => {
    try { localStorage.setItem("fairway-theme", theme); } catch { /* not remembered, then */ }
  };

  // keys

  const KEYS = [
    ["/", "search jobs, teams, users, nodes and pools"],
    ["Ctrl K", "the same, also while typing (⌘ K on a Mac)"],
    ["j  k", "next and previous row"],
    ["Enter", "open the row"],
    ["?", "show these keys"],
    ["Esc", "close, or leave a field"],
  ];
  const PATIENCE = 1500; // between `g` and the letter after it
  let wentAt = 0;

  const isTyping = (element) =>
    element.closest("input:not([type=checkbox]):not([type=radio]):not([type=submit]), textarea, select, [contenteditable]");

  const rows = () => [...document.querySelectorAll("[data-rows] tbody tr, tbody[data-rows] tr")]
    .filter((row) => row.querySelector("a[href]") && row.offsetParent !== null);

  const linkOf = (row) => row.querySelector("a[data-open]") || row.querySelector("a[href]");

  const move = (step) => {
    const all = rows();
    if (!all.length) return false;
    const now = all.findIndex((row) => row.contains(document.activeElement));
    const next = now < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(now + step, 0), all.length - 1);
    linkOf(all[next]).focus(); // Enter then opens it, as it does any link
    all[next].scrollIntoView({ block: "nearest" });
    return true;
  };

  const describe = (list, key, what) => {
    const name = document.createElement("dt");
    for (const part of key.split(" ").filter(Boolean)) {
      const kbd = document.createElement("kbd");
      kbd.textContent = part;
      name.append(kbd, " ");
    }
    const words = document.createElement("dd");
    words.textContent = what;
    list.append(name, words);
  };

  const showKeys = () => {
    const dialog = document.getElementById("keys-dialog");
    if (!dialog || dialog.open) return;
    const list = dialog.querySelector("dl");
    if (!list.children.length) {
      for (const link of document.querySelectorAll("nav [data-key]"))
        describe(list, `g ${link.dataset.key}`, link.textContent.trim());
      for (const [key, what] of KEYS) describe(list, key, what);
    }
    dialog.showModal();
  };

  // search

  const results = () => [...document.querySelectorAll("#search-results a[data-found]")];

  const openSearch = () => {
    const dialog = document.getElementById("search-dialog");
    if (!dialog || dialog.open) return false;
    for (const other of document.querySelectorAll("dialog[open]")) other.close();
    dialog.showModal();
    const field = document.getElementById("search-q");
    field.focus();
    field.select();
    return true;
  };

  const chooseResult = (event) => {
    const all = results();
    const field = document.getElementById("search-q");
    const now = all.indexOf(document.activeElement);
    if (event.key === "Enter" && document.activeElement === field && all.length) all[0].click();
    else if (event.key === "ArrowDown" && now < all.length - 1) all[now + 1].focus();
    else if (event.key === "ArrowUp" && now >= 0) (all[now - 1] || field).focus();
    else if (event.key === "Escape") document.getElementById("search-dialog").close(); // the field would clear itself first
    else return;
    event.preventDefault();
  };

  const pressed = (key) => {
    if (Date.now() - wentAt < PATIENCE) {
      wentAt = 0;
      const link = document.querySelector(`nav [data-key="${CSS.escape(key)}"]`);
      if (link) link.click();
      return Boolean(link);
    }
    switch (key) {
      case "g": wentAt = Date.now(); return true;
      case "?": showKeys(); return true;
      case "j": return move(1);
      case "k": return move(-1);
      case "/": return openSearch();
      default: return false;
    }
  };

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      openSearch();
      event.preventDefault();
      return;
    }
    if (event.target.closest && event.target.closest("#search-dialog")) {
      chooseResult(event);
      return;
    }
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return; // Esc closes it by itself
    if (event.key.length === 1 && pressed(event.key)) event.preventDefault();
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("#search")) { if (openSearch()) event.preventDefault(); }
    else if (event.target.closest("#theme")) keep((root.dataset.theme = isDark() ? "light" : "dark"));
    else if (event.target.closest("#keys")) showKeys();
    else if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
    else if (event.target.matches("dialog")) event.target.close(); // beside it
  });
})();
