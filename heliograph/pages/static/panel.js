// A list with a panel: on a wide screen a row opens beside it, and the address says which. Without a script, and on a
// narrow screen, a row is a page.

import { line } from "./live.js";

const panel = document.querySelector("[data-panel]");
const inside = panel?.querySelector("[data-inside]");
const WIDE = matchMedia("(min-width: 1280px)");
const FIRST = 3000, MOST = 15000, GROWS = 1.5;
let opener = null, timer = 0, tag = "", pause = FIRST;
// Whether it renews itself, as the line below it says.
let isPaused = false, hasFailed = false, at = new Date();
const fill = panel && line(panel.querySelector(".renewed"), () => {
  if (!hasFailed) isPaused = !isPaused;
  if (isPaused && !hasFailed) return later();
  renew();
});
const isOver = () => inside.querySelector("#state[data-final]") !== null;
// What an address names as open, and what is: at first what this page was asked for.
const named = (address) => new URL(address).searchParams.get("open") || "";
let opened = named(performance.getEntriesByType("navigation")[0].name), isLeaving = false;

// Back and Forward change the address alone. Where it names something else than what is open, the page is asked for
// anew; so it is when they were pressed while that was under way. A jump within the page changes nothing.
function follow() {
  if (!isLeaving && named(location.href) === opened) return;
  isLeaving = true;
  location.reload();
}

async function show(where, own = {}) {
  clearTimeout(timer);
  const headers = { "HX-Request": "true", Accept: "text/html", ...own };
  if (tag) headers["If-None-Match"] = tag;
  const answer = await fetch(where, { headers, redirect: "error" });
  // What has not changed costs nothing, and is asked for less often.
  if (answer.status === 304) {
    pause = Math.min(pause * GROWS, MOST);
    return shown();
  }
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("signed-out"));
  if (!answer.ok) throw new Error(answer.status);
  tag = answer.headers.get("etag") || "";
  pause = FIRST;
  await window.htmx.swap({ sourceElement: inside, target: inside, text: await answer.text(), swap: "innerMorph" });
  document.dispatchEvent(new CustomEvent("renewed", { detail: inside }));
  shown();
}

function shown() {
  at = new Date();
  hasFailed = false;
  later();
}

// As with what pages ask for by themselves (live.js), its session is not used; what is shown is not shared.
function renew() {
  show(panel.querySelector("[data-page]").href, { "X-Seen": "-" }).catch(() => {
    hasFailed = true;
    pause = MOST;
    later();
  });
}

// What is open renews itself until nothing more comes of it, as its page does.
function later() {
  clearTimeout(timer);
  fill({ at, failed: hasFailed, paused: isPaused, over: isOver() });
  if (isPaused) return;
  timer = setTimeout(() => {
    if (panel.hidden || isOver()) return;
    if (document.hidden) later();
    else renew();
  }, pause);
}

async function open(link, push) {
  const where = new URL(link.href);
  tag = "";
  isPaused = false;
  panel.querySelector("[data-page]").href = where;
  await show(where);
  panel.hidden = false;
  panel.parentElement.classList.add("is-open");
  opener = link.id || link.closest("tr")?.id;
  if (push) {
    const here = new URL(location.href);
    opened = where.pathname.split("/").pop();
    here.searchParams.set("open", opened);
    history.pushState(null, "", here);
  }
  panel.focus({ preventScroll: true });
}

function close() {
  opened = "";
  panel.hidden = true;
  panel.parentElement.classList.remove("is-open");
  const here = new URL(location.href);
  here.searchParams.delete("open");
  history.pushState(null, "", here);
  document.getElementById(opener)?.querySelector("a.row-link")?.focus();
}

if (panel) {
  if (!panel.hidden) later();
  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
    const link = event.target.closest("[data-rows] a.row-link");
    if (link && WIDE.matches) {
      event.preventDefault();
      open(link, true).catch(() => location.assign(link.href));
    } else if (event.target.closest("[data-panel] [data-close]")) {
      event.preventDefault();
      close();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.hidden && !document.querySelector("dialog[open]")) close();
  });
  addEventListener("popstate", follow);
  // Whoever is quick pressed them before this script was there.
  follow();
}
