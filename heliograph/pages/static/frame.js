// What the frame does by itself: the bell, the word on the service and what needs somebody at a place of the rail renew
// themselves as regions do (live.js), and the list of organizations is filtered by typing.

import { plain } from "./palette.js";

const FIRST = 2000, MOST = 15000, GROWS = 1.5, PATIENCE = 10000;
const mode = document.getElementById("palette-places").dataset.mode;
const places = { bell: document.querySelector("[data-bell]"), state: document.querySelector("[data-state]") };
const links = document.querySelectorAll(".rail a");
// Its word when nobody knows: "normally" must not stand there while nothing answers.
const unknown = places.state?.textContent;
let pause = FIRST, tag = "", timer = 0, asking = false, over = false;

function later() {
  clearTimeout(timer);
  if (!over && !document.hidden) timer = setTimeout(ask, pause);
}

function lost() {
  pause = MOST;
  tag = "";
  if (places.state) places.state.textContent = unknown;
}

async function ask() {
  if (asking || over) return;
  asking = true;
  try {
    const headers = { "HX-Request": "true", Accept: "text/html", "X-Organization": document.body.dataset.organization };
    if (tag) headers["If-None-Match"] = tag;
    const where = `${document.body.dataset.prefix}/state${mode}`;
    const answer = await fetch(where, { headers, redirect: "error", signal: AbortSignal.timeout(PATIENCE) });
    if (answer.ok) {
      tag = answer.headers.get("etag") || "";
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const [name, place] of Object.entries(places)) {
        const now = found.querySelector(`[data-now="${name}"]`);
        if (place && now) place.replaceChildren(...now.childNodes);
      }
      const marks = new Map([...found.querySelectorAll("[data-mark]")].map((one) => [one.dataset.mark, one]));
      for (const link of links) {
        link.querySelector("[data-mark]")?.remove();
        const mark = marks.get(link.pathname);
        if (mark) link.append(mark.cloneNode(true));
      }
      pause = FIRST;
    } else if (answer.status === 304) {
      pause = Math.min(pause * GROWS, MOST);
    } else {
      if (answer.status === 409) document.dispatchEvent(new CustomEvent("switched"));
      // Who has no session any more learns it by the page itself.
      over = answer.status === 401 || answer.status === 403;
      lost();
    }
  } catch {
    lost();
  } finally {
    asking = false;
  }
  later();
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
document.addEventListener("signed-in", () => { over = false; ask(); });
ask();

for (const menu of document.querySelectorAll("[data-filtered]")) {
  const field = menu.querySelector("[data-filter]");
  field.hidden = false;
  field.addEventListener("input", () => {
    const wanted = plain(field.value.trim());
    for (const form of menu.querySelectorAll("form")) form.hidden = !plain(form.textContent).includes(wanted);
  });
  field.addEventListener("keydown", event => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    menu.querySelector("form:not([hidden]) button")?.click();
  });
}

// Of tabs that have no room: the one whose page this is, is in sight.
const tab = document.querySelector(".tabs [aria-current]"), bar = tab?.parentElement;
if (bar) bar.scrollLeft += Math.max(0, tab.getBoundingClientRect().right - bar.getBoundingClientRect().right);
