// Rows that are marked: how many they are is said, all of a page are marked at once, and nothing can be done with none.

for (const form of document.querySelectorAll("form[data-marks]")) {
  const boxes = [...document.querySelectorAll(`input[type="checkbox"][form="${form.id}"]`)];
  const said = form.querySelector("[data-marked]");
  const all = document.createElement("button");
  all.type = "button";
  all.className = "button small quiet";
  said.before(all);
  const plain = all.ownerDocument.documentElement.dataset;

  function tell() {
    const count = boxes.filter((box) => box.checked).length;
    said.textContent = count ? `${count} ${said.dataset.some}` : said.dataset.none;
    all.textContent = count === boxes.length ? plain.unmarkAll : plain.markAll;
    for (const button of form.querySelectorAll("button[name]")) button.disabled = count === 0;
    for (const box of boxes) box.closest("tr").classList.toggle("is-marked", box.checked);
  }

  all.addEventListener("click", () => {
    const wanted = boxes.some((box) => !box.checked);
    for (const box of boxes) box.checked = wanted;
    tell();
  });
  for (const box of boxes) box.addEventListener("change", tell);
  tell();
}
