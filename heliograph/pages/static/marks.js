// Rows that are marked: how many they are is said, all of a page are marked at once, and nothing can be done with none.
// Rows may come and go: a list may renew itself.

for (const form of document.querySelectorAll("form[data-marks]")) {
  // Not `form.id`: a field that is called so hides it.
  const id = form.getAttribute("id");
  const boxes = () => [...document.querySelectorAll(`input[type="checkbox"][form="${id}"]`)];
  const said = form.querySelector("[data-marked]");
  const all = form.querySelector("[data-all]");
  all.hidden = false;
  const plain = all.ownerDocument.documentElement.dataset;

  function tell() {
    const listed = boxes(), count = listed.filter((box) => box.checked).length;
    said.textContent = count > 1 ? said.dataset.some.replace("%", count) : count ? said.dataset.one : said.dataset.none;
    all.textContent = count === listed.length ? plain.unmarkAll : plain.markAll;
    for (const button of form.querySelectorAll("button[name]")) button.disabled = count === 0;
    for (const box of listed) box.closest("tr").classList.toggle("is-marked", box.checked);
  }

  all.addEventListener("click", () => {
    const listed = boxes(), wanted = listed.some((box) => !box.checked);
    for (const box of listed) box.checked = wanted;
    tell();
  });
  document.addEventListener("change", (event) => event.target.getAttribute("form") === id && tell());
  document.addEventListener("renewed", tell);
  tell();
}
