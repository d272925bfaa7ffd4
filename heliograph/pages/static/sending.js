// The form of a send: its preview is renewed while somebody types. Without a script the button does it.

import { fell } from "./fragments.js";
import { isSignedOut } from "./session.js";

const form = document.querySelector("form[data-preview]");
const shown = document.getElementById("preview");
const PAUSE = 250;
let timer = 0, asking = null;

async function look() {
  clearTimeout(timer);
  asking?.abort();
  if (isSignedOut()) return document.addEventListener("signed-in", look, { once: true });
  asking = new AbortController();
  try {
    const answer = await fetch(form.dataset.preview, {
      method: "POST",
      headers: { "HX-Request": "true", Accept: "text/html" },
      body: new URLSearchParams(new FormData(form)),
      redirect: "error",
      signal: asking.signal,
    });
    if (!answer.ok) return fell(shown, answer.status, look);
    const text = await answer.text();
    await window.htmx.swap({ sourceElement: shown, target: shown, text, swap: "innerMorph" });
    document.dispatchEvent(new CustomEvent("renewed", { detail: shown }));
  } catch (error) {
    // One that the next key overtook was let go.
    if (error.name !== "AbortError") fell(shown, 0, look);
  }
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(look, PAUSE);
}

function write(name, value) {
  form.elements[name].value = value;
  form.elements[name].focus();
  look();
}

if (form && shown) {
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  document.querySelector("[data-look]").hidden = true;
  // Choices and replacements change a field; without a script they ask for another page.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[name=take], button[name=replace]");
    if (!button) return;
    event.preventDefault();
    if (button.name === "take") write("to", button.value);
    else write("message", button.dataset.text);
  });
  // Another template is chosen in a form of its own: what else was typed stays.
  const chooser = document.querySelector("form[data-chooser]");
  chooser?.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const one of chooser.querySelectorAll("select, [list]")) form.elements[one.name].value = one.value;
    form.requestSubmit(document.querySelector("[data-look]"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit(document.querySelector("[data-send]"));
    } else if (event.altKey && event.code === "KeyP") {
      event.preventDefault();
      look();
      document.getElementById("look").focus();
    }
  });
}
