// Ctrl+K: places, actions and what was pasted, those chosen last first. Everything in it can be reached without it.

// As people type it: without accents.
export const plain = (text) => text.toLocaleLowerCase().normalize("NFD").replace(/\p{M}/gu, "");

const source = document.getElementById("palette-places");
if (source) {
  const places = JSON.parse(source.textContent), more = source.dataset.source, mode = source.dataset.mode;
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

  // Of what was chosen, addresses and labels of places and actions alone: no names, no numbers, nothing that was typed.
  const MOST = 5, KEPT = `palette-${document.body.dataset.prefix}-${document.body.dataset.person}`;
  const known = (one) => `${one.label} ${one.path}`;
  const recent = () => {
    try {
      const kept = JSON.parse(localStorage.getItem(KEPT)) || [];
      return kept.map((key) => places.find((one) => known(one) === key)).filter(Boolean);
    } catch {
      return [];
    }
  };
  function remember(one) {
    if (!places.includes(one)) return;
    const kept = [one, ...recent().filter((other) => other !== one)].slice(0, MOST);
    try {
      localStorage.setItem(KEPT, JSON.stringify(kept.map(known)));
    } catch {
      // Without storage nothing is recent.
    }
  }

  let shown = [], at = 0, acts = [], things = [], timer = 0, asked = "";

  function draw() {
    const typed = input.value.trim();
    const low = plain(typed);
    const first = typed ? [] : recent();
    const all = [...first, ...places.filter((one) => !first.includes(one)), ...acts];
    shown = [...all.filter((one) => plain(one.label).includes(low)), ...(typed ? things : [])];
    if (typed) shown.push({ label: `${words.find} “${typed}”`, path: `${document.body.dataset.prefix}/go?q=${encodeURIComponent(typed)}` + mode.replace("?", "&") });
    at = Math.min(at, Math.max(shown.length - 1, 0));
    list.replaceChildren(
      ...shown.map((one, number) => {
        const item = document.createElement("li");
        item.id = `palette-${number}`;
        item.setAttribute("role", "option");
        item.setAttribute("aria-selected", String(number === at));
        item.textContent = one.label;
        item.addEventListener("click", () => go(one));
        return item;
      }),
    );
    input.setAttribute("aria-activedescendant", shown.length ? `palette-${at}` : "");
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  // What changes something is a form, as everywhere else.
  function go(one, aside) {
    remember(one);
    if (!one.post) return aside ? window.open(one.path, "_blank") : location.assign(one.path);
    const form = document.createElement("form");
    form.method = "post";
    form.action = one.path;
    form.hidden = true;
    const once = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
    const token = document.querySelector('input[name="_token"]')?.value || "";
    for (const [name, value] of Object.entries({ ...one.post, _token: token, _once: once, next: location.pathname + location.search })) {
      const field = document.createElement("input");
      field.type = "hidden";
      field.name = name;
      field.value = value;
      form.append(field);
    }
    document.body.append(form);
    dialog.close();
    form.requestSubmit();
  }

  // What has to be asked for comes in below: acts once, whatever is typed meanwhile, and what was found by what is typed.
  async function ask(typed) {
    const answer = await fetch(`${more}?q=${encodeURIComponent(typed)}${mode.replace("?", "&")}`, { headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer?.ok) return;
    const found = await answer.json();
    if (!typed) acts = found;
    else if (asked === typed) things = found;
    else return;
    draw();
  }

  function look() {
    at = 0;
    things = [];
    draw();
    clearTimeout(timer);
    const typed = input.value.trim();
    asked = typed;
    if (more && typed.replace(/\D/g, "").length > 5) timer = setTimeout(() => ask(typed), 200);
  }

  function open(typed = "") {
    if (dialog.open) return;
    input.value = typed;
    look();
    dialog.showModal();
    input.focus();
    if (more) ask("");
  }

  input.addEventListener("input", look);
  input.addEventListener("keydown", (event) => {
    // A key pressed while a character is being composed is for the composition.
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : shown.length - 1)) % Math.max(shown.length, 1);
      draw();
    } else if (event.key === "Enter" && shown[at]) {
      event.preventDefault();
      go(shown[at], event.ctrlKey || event.metaKey);
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
  // Who comes past the field by keyboard goes on: it opens for who clicks it, or begins to type or paste there. A
  // character that is composed of several keys (on some keyboards every accented one) is waited for: moving the focus
  // before would leave the bare accent in front of it.
  for (const field of document.querySelectorAll("input[data-palette]")) {
    field.addEventListener("click", () => open());
    const take = (event) => {
      if (event.isComposing || !field.value) return;
      open(field.value);
      field.value = "";
    };
    field.addEventListener("input", take);
    field.addEventListener("compositionend", take);
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || (event.key !== "ArrowDown" && event.key !== "Enter")) return;
      event.preventDefault();
      open();
    });
  }
}
