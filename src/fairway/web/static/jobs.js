// Filters take effect when chosen, and empty ones stay out of the address.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-filters]");
  if (form && event.target.matches("select")) form.requestSubmit();
});
document.addEventListener("formdata", (event) => {
  if (!event.target.matches("form[data-filters]")) return;
  for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
});
