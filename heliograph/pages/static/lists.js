// Lists: rows that lead where their link does, and looking further back where a look ended before its page was full.
// Each step of that is one look, which says how far it came; it ends at the first row, after ten looks, or when somebody
// stops it, on the page that shows what was found.

const MOST = 10;

async function further(paragraph) {
  const words = paragraph.dataset, box = document.createElement("div");
  box.className = "row looking";
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  said.textContent = paragraph.querySelector("span").textContent;
  const bar = document.createElement("progress");
  bar.max = MOST;
  bar.value = 0;
  bar.setAttribute("aria-label", words.looking);
  const stop = document.createElement("button");
  stop.type = "button";
  stop.className = "button small";
  stop.textContent = words.stop;
  box.append(said, bar, stop);
  // Outside a region that renews itself: that would take it away.
  (paragraph.closest("[data-live]") || paragraph).after(box);
  paragraph.hidden = true;
  stop.focus();

  let where = new URL(paragraph.querySelector("a").href), stopped = false;
  const asking = new AbortController();
  const end = () => {
    stopped = true;
    asking.abort();
  };
  stop.addEventListener("click", end);
  for (let look = 1; look <= MOST && !stopped; look += 1) {
    where.searchParams.delete("far");
    let page;
    try {
      const answer = await fetch(where, { headers: { Accept: "text/html" }, signal: asking.signal });
      if (!answer.ok) break;
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      break;
    }
    const next = page.querySelector("[data-further]");
    if (!next || page.querySelector("main [data-listed] tbody tr")) break;
    said.textContent = next.querySelector("span").textContent;
    bar.value = look;
    if (look < MOST) where = new URL(next.querySelector("a").href, location.href);
  }
  location.assign(where);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-further] a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
  event.preventDefault();
  further(link.closest("[data-further]"));
});

// A row leads where the link in its first cell does: a click anywhere in it is one on that link, unless it is on
// something with a meaning of its own, or a text of the row was selected.
document.addEventListener("click", (event) => {
  const link = event.target.closest("tbody tr")?.querySelector(":scope > :first-child > a");
  if (!link || event.defaultPrevented || event.target.closest("a, button, input, select, textarea, label, summary")) return;
  if (getSelection().isCollapsed) link.dispatchEvent(new MouseEvent("click", event));
});
