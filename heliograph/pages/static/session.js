// A session that ended, one that looks at another organization by now, and a service or network that is away, while a
// form is open: nothing that was typed is lost, and nothing reaches an organization that the page is not of. Before a
// form goes out the session is looked at; if it has ended, one signs in over the page, and the form goes out after it.

const WHERE = `${document.body.dataset.prefix}/session`;
// What is the person's own, whichever organization they look at.
const OWN = /\/(account|logout|organizations|preferences)(\/|$)/;
const dialog = document.getElementById("signed-out");
const away = document.getElementById("offline"), silent = document.getElementById("unanswered");
// What has not been answered after so long is not.
const PATIENCE = 10000;
const elsewhere = document.getElementById("other-organization");
let going = null;

async function look() {
  const headers = { "HX-Request": "true", Accept: "text/html" };
  const answer = await fetch(WHERE, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 401) return null;
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return page.querySelector("[data-person]").dataset;
}

function isSame(person) {
  return person.person === document.body.dataset.person;
}

function isHere(person) {
  return person.organization === document.body.dataset.organization;
}

// Whoever signs in again has other tokens, on every form of the page.
function renew(token) {
  for (const field of document.querySelectorAll('input[name="_token"]')) field.value = token;
}

// Whether somebody is about to sign in over the page: until the forms have their new tokens, what they send is refused.
export function isSignedOut() {
  return Boolean(dialog?.open);
}

function offline(is) {
  if (away) away.hidden = !is;
}

// The session looks at the page's organization again: who it is of then. `token`: of the session.
async function switchBack(token) {
  const body = new URLSearchParams({ _token: token });
  await fetch(elsewhere.querySelector("[data-back]").dataset.back, { method: "POST", body, redirect: "manual" });
  return look();
}

// The page is theirs: its forms go out, and its parts are asked for anew.
function take(person) {
  renew(person.token);
  if (elsewhere) elsewhere.hidden = true;
  dialog.close();
  document.dispatchEvent(new CustomEvent("signed-in"));
}

// A part of the page was refused: perhaps because the session looks at another organization by now.
async function switched() {
  const person = await look();
  if (person && isSame(person) && elsewhere) elsewhere.hidden = isHere(person);
}

// Why something did not go out: no network, or nobody who answers. Returns its words.
function told(error) {
  const isOffline = error instanceof TypeError;
  offline(isOffline);
  if (silent) silent.hidden = isOffline;
  return (isOffline ? away : silent)?.textContent.trim() || "";
}

async function submitted(event) {
  const form = event.target;
  if (form.method !== "post" || form.closest("dialog") || event.defaultPrevented) return;
  if (form.dataset.checked) {
    delete form.dataset.checked;
    return;
  }
  event.preventDefault();
  const button = event.submitter;
  try {
    const person = await look();
    offline(false);
    if (silent) silent.hidden = true;
    if (person && isSame(person) && elsewhere && !isHere(person) && !OWN.test(new URL(form.action).pathname)) {
      held();
      elsewhere.hidden = false;
      return elsewhere.scrollIntoView({ block: "center" });
    }
    if (person) {
      // They may have signed in anew in another tab.
      if (isSame(person)) renew(person.token);
      return await again(form, button);
    }
  } catch (error) {
    held();
    told(error);
    return;
  }
  held();
  going = { form, button };
  dialog.showModal();
}

function held() {
  document.dispatchEvent(new CustomEvent("held-back"));
}

// A file that is changed or gone since it was chosen cannot be sent, however often one tries.
export async function isReadable(file) {
  return !file || file.stream().getReader().read().then(() => true, () => false);
}

// That it has to be chosen again is said at its field (kit.changed): the browser would say less, on a page of its own.
async function isLost(form) {
  const told = form.querySelector("[data-changed]");
  if (!told) return false;
  const field = form.querySelector('input[type="file"]');
  told.hidden = await isReadable(field.files[0]);
  if (told.hidden) return false;
  field.value = "";
  field.focus();
  return true;
}

async function again(form, button) {
  if (await isLost(form)) return held();
  form.dataset.checked = "yes";
  form.requestSubmit(button && button.form === form ? button : undefined);
}

// Whoever comes back from another tab may have signed in anew there, and what a page sends while they type is not looked
// at beforehand.
async function returned() {
  if (dialog.open) return back();
  if (!document.querySelector("form[data-preview], form[data-draft]")) return;
  const person = await look();
  if (!person || !isSame(person)) return;
  if (elsewhere) elsewhere.hidden = isHere(person);
  if (isHere(person)) renew(person.token);
}

async function back() {
  let person = await look();
  // A new session looks at the first organization of a person.
  if (person && isSame(person) && elsewhere && !isHere(person)) person = await switchBack(person.token);
  if (!person) return false;
  if (!isSame(person) || !isHere(person)) {
    location.reload();
    return true;
  }
  take(person);
  if (going) await again(going.form, going.button);
  going = null;
  return true;
}

if (dialog) {
  document.addEventListener("submit", submitted);
  document.addEventListener("signed-out", () => dialog.open || dialog.showModal());
  // Whoever closes it, with its button or with Escape, has thought better of it: what they sent does not go out at a
  // later sign-in.
  dialog.addEventListener("cancel", () => (going = null));
  dialog.querySelector("[data-close]").addEventListener("click", () => {
    going = null;
    dialog.close();
  });
  document.addEventListener("switched", () => switched().catch(() => null));
  elsewhere?.querySelector("[data-back]").addEventListener("click", () =>
    back().then((is) => is || dialog.showModal()).catch(told));
  const form = dialog.querySelector("form");
  const password = form.querySelector('[type="password"]'), second = form.querySelector("[data-second]");
  const code = second.querySelector("input"), first = form.getAttribute("action");
  let ticket = "";

  // Two steps, as at the door: the password, then the code that a ticket asks for.
  function ask(sealed) {
    ticket = sealed;
    second.hidden = code.disabled = !sealed;
    code.required = Boolean(sealed);
    password.closest(".field").hidden = password.disabled = Boolean(sealed);
    code.value = password.value = "";
    (sealed ? code : password).focus();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const said = dialog.querySelector("[role=alert]");
    said.textContent = "";
    const sent = new URLSearchParams(new FormData(form)), was = ticket;
    if (ticket) sent.set("ticket", ticket);
    try {
      const answer = await fetch(ticket ? `${first}/code` : first, { method: "POST", body: sent, headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const asked = page.querySelector('input[name="ticket"]')?.value || "";
      ask(asked);
      if (answer.status === 429 || answer.status === 422) said.textContent = was && asked ? dialog.dataset.wrongCode : dialog.dataset.refused;
      else if (!asked && !(await back())) said.textContent = dialog.dataset.code;
    } catch (error) {
      said.textContent = told(error);
    }
  });
  // Who needs a code, or has no password, signs in in another tab and comes back.
  document.addEventListener("visibilitychange", () => document.hidden || returned().catch((error) => error instanceof TypeError && offline(true)));
  window.addEventListener("offline", () => offline(true));
  window.addEventListener("online", () => offline(false));
}

// What a tab keeps is not for whoever uses it next.
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || !event.target.getAttribute("action")?.endsWith("/logout")) return;
  try {
    sessionStorage.clear();
  } catch {
    // Without storage nothing was kept.
  }
});
