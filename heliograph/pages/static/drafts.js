// A form that is kept while somebody types; without this it is kept when it is checked.

const form = document.querySelector("form[data-draft]");
const PAUSE = 2000;
let timer = 0, saving = Promise.resolve(), left = false, lost = false;

async function save() {
  if (left) return;
  try {
    const answer = await fetch(form.dataset.draft, {
      method: "POST",
      headers: { "HX-Request": "true", Accept: "text/html" },
      body: new URLSearchParams(new FormData(form)),
      redirect: "error",
    });
    // Whoever's session ended signs in over the page, and then it is kept.
    lost = answer.status === 401;
    if (lost) document.dispatchEvent(new CustomEvent("signed-out"));
    if (answer.ok) document.querySelector("[data-saved]").textContent = (await answer.text()).trim();
  } catch {
    // The next key tries again.
  }
}

if (form) {
  form.addEventListener("input", () => {
    clearTimeout(timer);
    // One after the other: what was typed last is kept last.
    timer = setTimeout(() => (saving = saving.then(save)), PAUSE);
  });
  document.addEventListener("signed-in", () => lost && (saving = saving.then(save)));
  form.addEventListener("submit", () => {
    left = true;
    clearTimeout(timer);
  });
}
