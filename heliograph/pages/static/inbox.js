// Keys of the inbox: j and k move through the list, Enter opens, r answers, Ctrl+Enter sends. What is typed is kept.

import { page } from "./live.js";

const PATIENCE = 10000;
// The field is replaced once it can be answered (below).
const field = () => document.getElementById("message");
const end = () => {
  const list = document.querySelector(".bubbles");
  if (list) list.scrollTop = list.scrollHeight;
};

// Before the keys of every page: there, r would ask for the page again.
window.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && document.activeElement === field()) {
    event.preventDefault();
    field().form.requestSubmit(document.querySelector("[data-send]"));
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const links = [...document.querySelectorAll(".threads li a")];
  if (event.key === "j" || event.key === "k") {
    event.stopImmediatePropagation();
    const here = links.indexOf(document.activeElement);
    const start = here < 0 ? links.findIndex((link) => link.ariaCurrent === "true") : here;
    const next = links[Math.min(Math.max(start + (event.key === "j" ? 1 : -1), 0), links.length - 1)];
    next?.focus();
  } else if (event.key === "r" && field() && !field().disabled) {
    event.stopImmediatePropagation();
    event.preventDefault();
    field().focus();
  }
}, true);

// The newest words are in sight, and stay so while new ones come, unless somebody has scrolled up.
let last = "";
function follow() {
  const newest = document.querySelector(".bubbles li:last-child")?.id || "";
  if (newest !== last) end();
  last = newest;
}
document.addEventListener("renewed", follow);
follow();

// The field is outside what renews itself, so that nobody is interrupted while they type. One that was shut opens when
// they may be answered again: they wrote, or take messages again.
let asking = false;
async function reopenField() {
  if (asking || !field()?.disabled || !document.querySelector(".thread[data-answerable]")) return;
  asking = true;
  try {
    const answer = await fetch(page(), { headers: { Accept: "text/html" }, redirect: "error", signal: AbortSignal.timeout(PATIENCE) });
    const shown = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = shown.querySelector("#reply:has(#message:enabled)");
    if (answer.ok && found) {
      document.getElementById("reply").replaceWith(found);
      restore();
    }
  } catch {
    // It is tried again with the next renewal.
  } finally {
    asking = false;
  }
}
document.addEventListener("renewed", reopenField);

// An answer that is not sent yet stays, in this tab, while its writer presses another button or looks at another
// conversation. Whoever has sent it comes back to `#reply`; after anything else it has not gone out.
const kept = () => `answer-${document.body.dataset.person}-${new URL(field().form.action).pathname}`;

function keep(isSent) {
  try {
    if (field().value) sessionStorage.setItem(kept(), JSON.stringify({ text: field().value, isSent }));
    else sessionStorage.removeItem(kept());
  } catch {
    // Without storage it is kept as long as the page.
  }
}

function restore() {
  try {
    const { text, isSent } = JSON.parse(sessionStorage.getItem(kept())) || {};
    if (isSent && location.hash === "#reply") sessionStorage.removeItem(kept());
    else if (text && !field().disabled && !field().value) field().value = text;
  } catch {
    // Nothing was kept.
  }
}

if (field()) {
  document.addEventListener("input", (event) => event.target === field() && keep(false));
  document.addEventListener("submit", (event) => event.target === field().form && keep(true));
  document.addEventListener("held-back", () => keep(false));
  restore();
}
