// A form that is kept while somebody types; without this it is kept when it is checked.

import { isSignedOut } from "./session.js";

const form = document.querySelector("form[data-draft]");
const PAUSE = 2000;
let timer = 0, saving = Promise.resolve(), left = false, lost = false;

function tell(words) {
  document.querySelector("[data-saved]").textContent = words;
}

async function save(keepalive = false) {
  if (left) return;
  if (isSignedOut()) {
    lost = true;
    return;
  }
  try {
    const answer = await fetch(form.dataset.draft, {
      method: "POST",
      headers: { "HX-Request": "true", Accept: "text/html" },
      body: new URLSearchParams(new FormData(form)),
      redirect: "error",
      keepalive,
    });
    // Whoever's session ended signs in over the page, and then it is kept.
    lost = answer.status === 401;
    if (lost) document.dispatchEvent(new CustomEvent("signed-out"));
    if (answer.status === 409) document.dispatchEvent(new CustomEvent("switched"));
    const words = (await answer.text()).trim();
    // What was typed since then is not kept yet.
    if (answer.ok && !timer) tell(words);
  } catch {
    // The next key tries again.
  }
}

if (form) {
  form.addEventListener("input", () => {
    clearTimeout(timer);
    tell("");
    // One after the other: what was typed last is kept last.
    timer = setTimeout(() => {
      timer = 0;
      saving = saving.then(() => save());
    }, PAUSE);
  });
  // Whoever goes on sooner takes nothing along: it outlives the page.
  addEventListener("pagehide", () => {
    if (!timer) return;
    clearTimeout(timer);
    timer = 0;
    save(true);
  });
  document.addEventListener("signed-in", () => lost && (saving = saving.then(() => save())));
  form.addEventListener("submit", () => {
    left = true;
    clearTimeout(timer);
  });
  // It did not go out after all (session.js).
  document.addEventListener("held-back", () => {
    left = false;
  });
}
