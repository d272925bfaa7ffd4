// Regions that renew themselves: the page's own address is asked again with its ETag, so that nothing new costs nothing.
// After 2 s, then 1.5 times longer each time nothing changed, at most 15 s; never while nobody looks. What is shown may
// have been made for somebody else who sees the same, but never before what this page shows already (`x-seen`).

const FIRST = 2000, MOST = 15000, GROWS = 1.5;
// What has not been answered after so long is not: a process hangs, or the network swallows what is sent.
const PATIENCE = 10000;

// Where the page is asked for again. The answer to a form has the form's address, which leads elsewhere when asked for.
export const page = () => new URL(document.documentElement.dataset.here || location.href, location.href);

// In the time zone of the page's other times.
function clock(at) {
  const { lang, dataset } = document.documentElement;
  return new Intl.DateTimeFormat(lang, { timeStyle: "medium", hourCycle: "h23", timeZone: dataset.zone }).format(at);
}

// Regions that could not be renewed, with the time of what they show. It is said at the head of the page: their own
// lines are below them, which is out of sight on a wall.
const old = new Map(), band = document.getElementById("old");

function date(region, failed, at) {
  if (failed) old.set(region, at);
  else old.delete(region);
  if (!band) return;
  if (old.size) band.lastElementChild.textContent = band.dataset.said.replace("%", clock(Math.min(...old.values())));
  band.hidden = !old.size;
}

// The line below what renews itself: when it did, and a button that pauses it, `pressed`. Returns what fills it.
export function line(foot, pressed) {
  const said = document.createElement("span"), button = document.createElement("button");
  button.type = "button";
  button.className = "button quiet small";
  button.addEventListener("click", pressed);
  foot.replaceChildren(said, button);
  const words = document.documentElement.dataset;
  // What is shown is as old as the last answer, however often it was asked for since.
  return ({ at, failed, paused, over }) => {
    said.textContent = over ? "" : `${failed ? `${words.failed} ` : ""}${words.renewed} ${clock(at)}`;
    foot.classList.toggle("wrong", failed);
    button.textContent = failed ? words.again : paused ? words.goOn : words.pause;
    foot.hidden = over;
  };
}

function live(region) {
  // A region may ask to be looked at more often: `data-live` names the longest pause.
  const most = Number(region.dataset.live) || MOST, first = Math.min(FIRST, most);
  // After a failure. What is looked at often is looked at in outages, when one answer in many fails.
  const again = Math.min(MOST, 2 * most);
  let pause = first, tag = "", timer = 0, asking = false, paused = false, over = false, failed = false, at = new Date();

  // Its place is in the page (kit.renewed); a region without one would push what is below it.
  let foot = region.nextElementSibling;
  if (!foot?.matches(".renewed")) {
    foot = document.createElement("p");
    foot.className = "renewed muted small in-place";
    region.after(foot);
  }
  const fill = line(foot, () => {
    if (!failed) paused = !paused;
    tell();
    if (!paused || failed) ask();
  });
  const tell = () => {
    fill({ at, failed, paused, over });
    date(region, failed, at);
  };
  let seen = document.documentElement.dataset.made;

  function later() {
    clearTimeout(timer);
    if (!paused && !over && !document.hidden) timer = setTimeout(ask, pause);
  }

  async function ask() {
    if (asking) return;
    asking = true;
    try {
      const headers = { "HX-Request": "true", Accept: "text/html", "X-Seen": seen, "X-Organization": document.body.dataset.organization };
      if (tag) headers["If-None-Match"] = tag;
      const where = page();
      // A list names the first row that is read, so that new ones are counted above it and do not move in.
      if (region.dataset.top) where.searchParams.set("top", region.dataset.top);
      const answer = await fetch(where, { headers, redirect: "error", signal: AbortSignal.timeout(PATIENCE) });
      seen = answer.headers.get("x-made") || seen;
      failed = !answer.ok && answer.status !== 304 && answer.status !== 401;
      if (answer.ok || answer.status === 304) at = new Date();
      if (answer.status === 401) {
        document.dispatchEvent(new CustomEvent("signed-out"));
        pause = MOST;
      } else if (answer.status === 409) {
        document.dispatchEvent(new CustomEvent("switched"));
        pause = MOST;
      } else if (answer.status === 304) {
        pause = Math.min(pause * GROWS, most);
      } else if (answer.ok) {
        const text = await answer.text();
        const isFirst = tag === "";
        tag = answer.headers.get("etag") || "";
        await window.htmx.swap({ sourceElement: region, target: region, text, swap: "innerMorph" });
        document.dispatchEvent(new CustomEvent("renewed", { detail: region }));
        // A part of it that failed (kit.failed_part) differs each time, and is not to be asked for all the faster.
        pause = region.querySelector("[data-failed-part]") ? again : isFirst ? pause : first;
        over = region.querySelector("[data-final]") !== null;
      } else {
        pause = again;
      }
    } catch {
      failed = true;
      pause = again;
    } finally {
      asking = false;
    }
    tell();
    later();
  }

  // "Try again" of a part that failed: what was made with it is not asked for again.
  region.addEventListener("click", (event) => {
    if (!event.target.closest("[data-ask]")) return;
    event.preventDefault();
    seen = String(Number(seen) + 1);
    ask();
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden && !paused && !over) ask();
  });
  document.addEventListener("signed-in", ask);
  tell();
  later();
}

for (const region of document.querySelectorAll("[data-live]")) live(region);
