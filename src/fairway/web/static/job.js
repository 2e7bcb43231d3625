// Asks in a dialog before a job is changed, and follows its log while somebody looks.
(() => {
  const EVERY = 2000;
  const MOST = 300; // pieces of a log that is followed for long

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-dialog]");
    const dialog = link && document.getElementById(link.dataset.dialog);
    if (!dialog || !dialog.showModal) return;
    event.preventDefault();
    dialog.showModal();
  });

  // A part that is replaced while a dialog is open would close it: nothing is asked for, and what was is not shown.
  const asks = (event) => event.target.id === "job-part" && document.querySelector("dialog[open]");
  document.addEventListener("htmx:beforeRequest", (event) => { if (asks(event)) event.preventDefault(); });
  document.addEventListener("htmx:beforeSwap", (event) => { if (asks(event)) event.detail.shouldSwap = false; });

  const follows = () => {
    const box = document.querySelector("[data-follow]");
    return box && box.checked;
  };

  const toEnd = (log) => { log.scrollTop = log.scrollHeight; };

  setInterval(() => {
    if (!document.hidden && follows()) document.body.dispatchEvent(new CustomEvent("fw-log"));
  }, EVERY);

  // The server did not answer, or not as it should: said in the log's own place.
  const failed = (event) => {
    const place = event.target.closest("#log-part");
    if (!place || place.querySelector("[data-log]")) return;
    const said = document.createElement("p");
    said.className = "fault";
    said.setAttribute("role", "alert");
    said.textContent = "The log could not be read. Reload the page to try again.";
    place.replaceChildren(said);
  };
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:sendError", failed);

  document.addEventListener("htmx:afterSwap", (event) => {
    const log = document.querySelector("pre[data-log]");
    if (!log || !event.target.closest("#log-part")) return;
    while (log.childNodes.length > MOST) log.firstChild.remove();
    if (follows() || event.target.id === "log-part") toEnd(log);
    if (!document.getElementById("log-more")) {
      const box = document.querySelector(".follow");
      if (box) box.remove(); // it ended
    }
  });
})();
