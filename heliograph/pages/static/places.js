// Buttons that put a placeholder where the cursor is; without this they are typed.

for (const row of document.querySelectorAll("[data-places]")) {
  const text = document.getElementById(row.dataset.places);
  row.hidden = false;
  row.addEventListener("click", (event) => {
    const button = event.target.closest("[data-place]");
    if (!button) return;
    text.setRangeText(button.dataset.place, text.selectionStart, text.selectionEnd, "end");
    text.focus();
  });
}
