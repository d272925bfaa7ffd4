// Ctrl+K: places and what was pasted. Everything in it can be reached without it.

const source = document.getElementById("palette-places");
if (source) {
  const places = JSON.parse(source.textContent);
  const words = document.documentElement.dataset;
  const dialog = document.createElement("dialog");
  dialog.className = "palette";
  dialog.setAttribute("aria-label", words.palette);
  const input = document.createElement("input");
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "true");
  input.setAttribute("aria-controls", "palette-list");
  input.setAttribute("aria-label", words.palette);
  input.placeholder = words.palette;
  input.autocomplete = "off";
  const list = document.createElement("ul");
  list.id = "palette-list";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", words.palette);
  dialog.append(input, list);
  document.body.append(dialog);

  let shown = [], at = 0;

  function draw() {
    const typed = input.value.trim();
    const low = typed.toLocaleLowerCase();
    shown = places.filter((place) => place.label.toLocaleLowerCase().includes(low));
    if (typed) shown.push({ label: `${words.find} “${typed}”`, path: `${document.body.dataset.prefix}/go?q=${encodeURIComponent(typed)}` + source.dataset.mode.replace("?", "&") });
    at = Math.min(at, Math.max(shown.length - 1, 0));
    list.replaceChildren(
      ...shown.map((one, number) => {
        const item = document.createElement("li");
        item.id = `palette-${number}`;
        item.setAttribute("role", "option");
        item.setAttribute("aria-selected", String(number === at));
        item.textContent = one.label;
        item.addEventListener("click", () => location.assign(one.path));
        return item;
      }),
    );
    input.setAttribute("aria-activedescendant", shown.length ? `palette-${at}` : "");
  }

  function open() {
    if (dialog.open) return;
    input.value = "";
    at = 0;
    draw();
    dialog.showModal();
    input.focus();
  }

  input.addEventListener("input", () => {
    at = 0;
    draw();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : shown.length - 1)) % Math.max(shown.length, 1);
      draw();
    } else if (event.key === "Enter" && shown[at]) {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) window.open(shown[at].path, "_blank");
      else location.assign(shown[at].path);
    }
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    } else if (event.key === "/" && !event.target.closest("input, textarea, select, [contenteditable]")) {
      const field = document.querySelector('[role="search"] input[type="search"]');
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
  });
  for (const field of document.querySelectorAll("[data-palette]")) {
    field.addEventListener("focus", () => {
      field.blur();
      open();
    });
  }
}
