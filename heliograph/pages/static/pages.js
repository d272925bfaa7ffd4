// What pages gain with a script: nothing here is needed to use them.

const $ = (selector, root = document) => [...root.querySelectorAll(selector)];

// Buttons that copy stand only where copying works, also on what was renewed.
function copying(root = document) {
  for (const button of $("[data-copy]", root)) button.hidden = false;
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  event.preventDefault();
  await navigator.clipboard.writeText(button.dataset.copy);
  document.dispatchEvent(new CustomEvent("copied"));
  // Not by its colour alone.
  const sign = button.querySelector("use"), [file] = sign.getAttribute("href").split("#");
  button.classList.add("done");
  sign.setAttribute("href", `${file}#check`);
  setTimeout(() => {
    button.classList.remove("done");
    sign.setAttribute("href", `${file}#copy`);
  }, 1500);
});
// That it was copied is said as well; anew each time.
const told = document.createElement("p");
told.className = "unseen";
told.setAttribute("role", "status");
// First, as it would lengthen a page that it stands at the end of.
document.body.prepend(told);
document.addEventListener("copied", () => {
  told.textContent = "";
  setTimeout(() => (told.textContent = document.documentElement.dataset.copied), 100);
});
document.addEventListener("renewed", (event) => copying(event.detail));

// What is to be kept can be kept as a file, without asking a server for it again.
for (const button of $("[data-download]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([button.dataset.text + "\n"], { type: "text/plain" }));
    link.download = button.dataset.download;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

// A choice of language, theme or rows needs no second click, also in what was renewed.
function choosing(root = document) {
  for (const button of $("[data-auto] button", root)) button.hidden = true;
}
document.addEventListener("change", (event) => {
  const choice = event.target.closest("[data-auto]");
  if (choice) event.target.form.requestSubmit(choice.matches("form") ? undefined : choice.querySelector("button"));
});
document.addEventListener("renewed", (event) => choosing(event.detail));
choosing();

// What was just done can be taken back for ten seconds.
for (const form of $("form[data-brief]")) {
  setTimeout(() => {
    if (!form.contains(document.activeElement)) form.hidden = true;
  }, 10000);
}

// The token of a one-time link stands after `#`, so that it is in no log: here it gets into the form. A link that is
// pasted where this page is open already changes nothing but what stands after `#`.
function linked() {
  const token = location.hash.slice(1);
  for (const field of token ? $("input[data-from-address]") : []) {
    field.value = token;
    history.replaceState(null, "", location.pathname + location.search);
    if (field.dataset.fromAddress === "submit") field.form.requestSubmit();
  }
}
linked();
addEventListener("hashchange", linked);

// What was wrong is said first.
document.getElementById("summary")?.focus();

// Too fast: counted down, and tried again once by itself where nothing was sent.
for (const line of $("[data-retry]")) {
  let left = Number(line.dataset.retry);
  const tried = history.state === "tried";
  const tick = setInterval(() => {
    left -= 1;
    line.textContent = line.dataset.said.replace("%", String(Math.max(left, 0)));
    if (left > 0) return;
    clearInterval(tick);
    if (tried || line.dataset.method !== "GET") return;
    history.replaceState("tried", "");
    location.reload();
  }, 1000);
}

// The database is away: the page is asked for until it is there, less and less often.
for (const line of $("[data-until]")) {
  let pause = 1000, tries = 0;
  const ask = async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" }).catch(() => null);
    if (answer && answer.status < 500) return location.reload();
    tries += 1;
    line.textContent = line.dataset.said.replace("%", tries);
    pause = Math.min(pause * 1.5, 15000);
    setTimeout(ask, pause);
  };
  setTimeout(ask, pause);
}

// A menu closes with Escape, and when something else is clicked or has the focus: what it covers would take the focus
// unseen. The part of a form that opens is no menu: it stays as it is.
const MENUS = "details.who[open], .rail details[open]";
function leave(event) {
  for (const menu of $(MENUS)) if (!menu.contains(event.target)) menu.open = false;
}
document.addEventListener("click", leave);
document.addEventListener("focusin", leave);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of $(MENUS)) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

// The exact time of one that is told as "3 minutes ago" shows under a pointer. By keyboard a time takes the focus, or the
// row that it stands in; where nothing hovers, it is touched. `tabindex` stays when a region is renewed (`morphIgnore`),
// as does what a reader has opened.
const TIMES = "time[title]", OTHERS = "a, button, label, summary";
function telling(root = document) {
  for (const time of $(TIMES, root)) if (!time.closest(`tr, ${OTHERS}`)) time.tabIndex = 0;
}
document.addEventListener("click", (event) => {
  const time = event.target.closest(TIMES);
  for (const one of $("time.told")) if (one !== time) one.classList.remove("told");
  if (!time || time.closest(OTHERS) || !matchMedia("(hover: none)").matches) return;
  event.preventDefault();
  time.classList.toggle("told");
});
document.addEventListener("renewed", (event) => telling(event.detail));
telling();

// Whoever waits for a form sees that it is on its way: after 400 ms its button says so, until the page goes or the form
// is held back (session.js). Where the answer is a file (`data-file`), the page stays, and nobody would say that it came.
const LATE = 400;
let waits = null, late = 0;

function rest() {
  clearTimeout(late);
  waits?.removeAttribute("aria-busy");
  waits = null;
}
document.addEventListener("submit", (event) => {
  const form = event.target, button = event.submitter || form.querySelector("button");
  if (event.defaultPrevented || form.method !== "post" || "file" in form.dataset || !button || waits === button) return;
  rest();
  waits = button;
  late = setTimeout(() => button.setAttribute("aria-busy", "true"), LATE);
});
// The second click of a double click sends nothing: the answer would be about what the first one has already done.
document.addEventListener("click", (event) => {
  const button = event.detail > 1 && event.target.closest("button");
  if (button && button.type === "submit" && button.form?.method === "post") event.preventDefault();
});
document.addEventListener("held-back", rest);
addEventListener("pageshow", rest);

copying();
