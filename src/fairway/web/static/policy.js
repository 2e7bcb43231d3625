// The editor of the fleet file: colours, errors at their lines, differences while typing. Nothing is changed by it.
(() => {
  // In this order: a comment, a quoted text, a key, a constant or number.
  const TOKENS = /((?:^|\s)#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|([\w.\/<-]+)(?=\s*:(?:\s|$))|(\b(?:true|false|null)\b|\b\d+(?:\.\d+)?\b(?![\w-]))/g;
  const KINDS = ["yaml-comment", "yaml-text", "yaml-key", "yaml-value"];
  const MOST = 6000; // lines that are painted: a longer file stays plain

  const editor = () => document.querySelector("[data-editor]");
  let faults = new Map(); // by line
  let checked = "";
  let drawing = 0;

  const paintLine = (line, number) => {
    const row = document.createElement("span");
    row.className = "row";
    let at = 0;
    for (const found of line.matchAll(TOKENS)) {
      if (found.index < at) continue;
      row.append(line.slice(at, found.index));
      const piece = document.createElement("span");
      piece.className = KINDS[found.slice(1).findIndex((part) => part !== undefined)];
      piece.textContent = found[0];
      row.append(piece);
      at = found.index + found[0].length;
    }
    row.append(line.slice(at));
    const fault = faults.get(number);
    if (fault) {
      row.classList.add(`row-${fault.severity}`);
      const lens = document.createElement("span");
      lens.className = "lens";
      lens.textContent = `  ${fault.severity === "error" ? "✕" : "!"} ${fault.message}`;
      row.append(lens);
    }
    return row;
  };

  const paint = () => {
    const box = editor();
    if (!box) return;
    const field = box.querySelector("textarea");
    const lines = field.value.split("\n");
    box.classList.toggle("painted", lines.length <= MOST);
    const sheet = document.createDocumentFragment();
    const numbers = document.createDocumentFragment();
    if (lines.length <= MOST) lines.forEach((line, index) => {
      sheet.append(paintLine(line, index + 1), "\n");
      const number = document.createElement("span");
      const fault = faults.get(index + 1);
      if (fault) number.className = `row-${fault.severity}`;
      numbers.append(number, "\n");
    });
    box.querySelector(".paint").replaceChildren(sheet);
    box.querySelector(".gutter").replaceChildren(numbers);
    follow();
  };

  const follow = () => {
    const box = editor();
    const field = box.querySelector("textarea");
    const paper = box.querySelector(".paint");
    paper.scrollTop = box.querySelector(".gutter").scrollTop = field.scrollTop;
    paper.scrollLeft = field.scrollLeft;
  };

  const readFaults = (place) => {
    faults = new Map();
    for (const item of place.querySelectorAll("[data-fault]")) {
      const line = Number(item.dataset.fault);
      if (!faults.has(line) || item.dataset.severity === "error")
        faults.set(line, { severity: item.dataset.severity, message: item.dataset.message });
    }
    paint();
  };

  const stale = () => {
    const plan = document.getElementById("plan-answer");
    const field = document.getElementById("fleet");
    if (plan && plan.querySelector(".apply")) plan.classList.toggle("stale", field.value !== checked);
  };

  document.addEventListener("input", (event) => {
    if (event.target.id !== "fleet" || drawing) return;
    drawing = requestAnimationFrame(() => { // once for all that changes in a frame
      drawing = 0;
      faults = new Map(); // they are of the text before
      paint();
      stale();
    });
  });
  document.addEventListener("scroll", (event) => { if (event.target.id === "fleet") follow(); }, true);

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target.matches("[data-plan-form]")) checked = document.getElementById("fleet").value;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id !== "check-answer" && event.target.id !== "plan-answer") return;
    if (event.target.id === "plan-answer") {
      const check = document.getElementById("check-answer");
      if (event.target.querySelector("[data-fault]")) check.replaceChildren(); // the same errors, once
      event.target.classList.remove("stale");
      if (!event.target.querySelector("[data-fault]")) return;
    }
    readFaults(event.target);
  });

  // A chosen file is read here, into the form: nothing is sent until Plan is pressed, but to be checked.
  document.addEventListener("change", async (event) => {
    const file = event.target.id === "fleet-file" && event.target.files[0];
    if (!file) return;
    const field = document.getElementById("fleet");
    field.value = await file.text();
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });

  // A fault's line in the form; copying a file.
  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy && navigator.clipboard) {
      const answer = await fetch(copy.dataset.copy);
      await navigator.clipboard.writeText(await answer.text());
      copy.textContent = "Copied";
      return;
    }
    const link = event.target.closest("a[data-line]");
    const field = document.getElementById("fleet");
    if (!link || !field) return;
    event.preventDefault();
    const lines = field.value.split("\n");
    const line = Math.min(Number(link.dataset.line), lines.length);
    const start = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
    field.focus();
    field.setSelectionRange(start, start + lines[line - 1].length);
    field.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(field).lineHeight));
  });

  if (editor()) readFaults(document);
})();
