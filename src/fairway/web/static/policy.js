// A chosen fleet file is read here, into the form: nothing is sent until Plan is pressed.
document.addEventListener("change", async (event) => {
  const file = event.target.id === "fleet-file" && event.target.files[0];
  if (!file) return;
  document.getElementById("fleet").value = await file.text();
});

// A fault's line in the form.
document.addEventListener("click", (event) => {
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
