// What was typed is there for whoever goes back, also where a browser keeps nothing: it leaves the fields alone that have
// nothing to suggest (`autocomplete="off"`). They are kept in this tab, for the same person, organization, visit and form:
// the answer to a form may have its page's address, and what was meant for one organization does not get into the same
// form of another.

const { person, organization } = document.body.dataset;
// By the entry of the tab's history, where browsers name it.
const visit = () => window.navigation?.currentEntry?.key ?? location.pathname + location.search;
const kept = () => `typed-${person}-${organization}-${visit()}`;
// Not what confirms something.
const FIELDS = 'form[method="post"] :is(input, textarea)[autocomplete="off"]:not([type="password"], [name="typed"])';
const fields = () => [...document.querySelectorAll(FIELDS)];
let isSigningOut = false;

// A form's address, what it is about, where several on the page have the same address, and what stood in the field: what
// somebody else has written there since is not overwritten.
function known(field) {
  const action = field.form.getAttribute("action"), alike = [...document.forms].filter((one) => one.getAttribute("action") === action);
  const about = alike.length > 1 ? [...field.form.querySelectorAll('[type="hidden"]:not([name^="_"])')].map((one) => one.value) : [];
  return [action, field.name, field.defaultValue, ...about].join(" ");
}

addEventListener("pagehide", () => {
  const typed = isSigningOut ? [] : fields().filter((field) => field.value !== field.defaultValue);
  try {
    if (typed.length) sessionStorage.setItem(kept(), JSON.stringify(typed.map((field) => [known(field), field.value])));
    else sessionStorage.removeItem(kept());
  } catch {
    // Without storage, or with too much for it, they are as the browser leaves them.
  }
});
// What a tab keeps is not for whoever uses it next (session.js).
document.addEventListener("submit", (event) => {
  isSigningOut = !event.defaultPrevented && Boolean(event.target.getAttribute("action")?.endsWith("/logout"));
});

if (performance.getEntriesByType("navigation")[0]?.type === "back_forward") {
  try {
    const typed = new Map(JSON.parse(sessionStorage.getItem(kept())));
    for (const field of fields()) if (field.value === field.defaultValue) field.value = typed.get(known(field)) ?? field.value;
  } catch {
    // Nothing was kept.
  }
}
