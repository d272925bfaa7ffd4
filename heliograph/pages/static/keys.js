// Keys: none with one letter alone while a field has focus, all listed under `?`, all of them can be switched off there.
// A key goes only where a link of the page leads: what a role may not see has no key either.

const help = document.getElementById("keys");
const off = document.body.dataset.keys === "off";
let waits = 0, moves = 0;

const $ = (selector) => document.querySelector(selector);
const rows = () => [...document.querySelectorAll("main .table tbody tr")].filter((row) => row.querySelector("a"));
const follow = (link) => link && (link.click(), true);
const place = (key) => $(`.rail a[data-go="${CSS.escape(key)}"]`);

function step(by) {
  const all = rows();
  if (!all.length) return false;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const to = all[Math.min(Math.max(at + by, 0), all.length - 1)];
  to.querySelector("a").focus();
  to.scrollIntoView({ block: "nearest" });
  return true;
}

// Marks the row that is looked at, or takes its mark away.
function mark() {
  const box = document.activeElement?.closest("main .table tbody tr")?.querySelector('input[type="checkbox"]:enabled');
  box?.click();
  return Boolean(box);
}

// From the page of a row, its neighbours are one key away: this tab keeps where the rows of its last list lead.
const LISTED = "listed";
document.addEventListener("click", (event) => {
  const list = event.target.closest("a.row-link")?.closest("[data-rows]");
  if (!list) return;
  try {
    const kept = [...list.querySelectorAll("a.row-link")].map((link) => link.pathname + link.search);
    sessionStorage.setItem(LISTED, JSON.stringify(kept));
  } catch {
    // Without storage a row has no neighbours.
  }
}, true);

function beside(by) {
  let kept = [];
  try {
    kept = JSON.parse(sessionStorage.getItem(LISTED)) || [];
  } catch {
    return false;
  }
  const at = kept.findIndex((one) => one.split("?")[0] === location.pathname), to = kept[at + by];
  if (at < 0 || !to) return false;
  location.assign(to);
  return true;
}

// Things that wait for a decision, one below the other: `j` and `k` go through them, `a` and `x` decide.
const cards = () => [...document.querySelectorAll("[data-decided]")];
const card = () => cards().find((one) => one.contains(document.activeElement)) || cards()[0];

function leaf(by) {
  const all = cards(), at = all.findIndex((one) => one.contains(document.activeElement));
  const to = all[Math.min(Math.max(at + by, 0), all.length - 1)]?.querySelector("[data-approve]");
  to?.focus();
  to?.scrollIntoView({ block: "nearest" });
  return Boolean(to);
}

const ACTS = {
  "?": () => (help.showModal(), true),
  a: () => follow(card()?.querySelector("[data-approve]")),
  x: () => follow(card()?.querySelector("[data-reject]")),
  j: () => step(1) || leaf(1),
  k: () => step(-1) || leaf(-1),
  " ": mark,
  s: () => follow([...document.querySelectorAll(".rail a")].find((link) => new URL(link.href).pathname === "/send")),
  n: () => follow($(".head a.primary")),
  e: () => follow($("main summary .icon use[href$='#download']")?.closest("summary") || $("main form[action*='/export'] button")),
  f: () => { if (!$("[data-wall]")) return false; if (document.fullscreenElement) document.exitFullscreen(); else document.documentElement.requestFullscreen(); return true; },
  r: () => (location.reload(), true),
  y: () => (navigator.clipboard?.writeText(location.href).then(() => document.dispatchEvent(new CustomEvent("copied"))), true),
  c: () => follow($("main [data-copy]")),
  w: () => { const why = $("#why"); why?.focus(); why?.scrollIntoView({ block: "start" }); return Boolean(why); },
  m: () => follow($(".modes a:not([aria-current])")),
  o: () => { const menu = $("details.who.organizations") || $("details.who.person"); if (menu) { menu.open = true; menu.querySelector("[data-filter], summary").focus(); } return Boolean(menu); },
  "[": () => follow($('a[rel="prev"]')) || beside(-1),
  "]": () => follow($('a[rel="next"]')) || beside(1),
  ".": () => follow($("[data-newer]")),
};

document.addEventListener("keydown", (event) => {
  // A page may have keys of its own: its field for an answer makes `r` mean that.
  if (off || (event.key === "r" && $("#message")) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select, [contenteditable], [data-plot]")) return;
  if (waits && Date.now() - waits < 1500 && place(event.key)) {
    waits = 0;
    if (follow(place(event.key))) event.preventDefault();
    return;
  }
  // `t`, and then: the time before, the time after, exactly these times.
  const time = moves && Date.now() - moves < 1500 && { ArrowLeft: "[data-earlier]", ArrowRight: "[data-later]", a: "[data-fixed]" }[event.key];
  moves = event.key === "t" ? Date.now() : 0;
  if (time) {
    if (follow($(time))) event.preventDefault();
    return;
  }
  waits = event.key === "g" ? Date.now() : 0;
  if (ACTS[event.key]?.()) event.preventDefault();
});
for (const button of document.querySelectorAll("[data-keys-help]")) {
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
}
