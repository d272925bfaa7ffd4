// Parts of a page that are asked for while somebody types, such as a preview: one that fails says so in its own place,
// above what it showed, and is tried again by its button. If the session has ended, one signs in over the page first.

const words = document.documentElement.dataset;

// `status`: of the answer, 0 for none; `again` asks anew.
export function fell(place, status, again) {
  if (status === 401) {
    document.dispatchEvent(new CustomEvent("signed-out"));
    document.addEventListener("signed-in", again, { once: true });
    return;
  }
  if (status === 409) document.dispatchEvent(new CustomEvent("switched"));
  const line = document.createElement("span"), button = document.createElement("button");
  line.className = "wrong fell";
  button.type = "button";
  button.className = "button small";
  button.textContent = words.again;
  button.addEventListener("click", again);
  line.append(words.failed, button);
  place.querySelector(":scope > .fell")?.remove();
  place.prepend(line);
}

// With what stands in the field by then.
function repeat({ sourceElement: source, target, swap, select }) {
  return () => window.htmx.ajax("GET", source.getAttribute("hx-get"), { source, target, swap, select });
}
document.addEventListener("htmx:before:response", (event) => {
  const { ctx } = event.detail;
  if (ctx.response.status < 400) return;
  event.preventDefault();
  fell(ctx.target, ctx.response.status, repeat(ctx));
});
document.addEventListener("htmx:error", (event) => {
  const { ctx } = event.detail;
  if (ctx?.target && !ctx.response) fell(ctx.target, 0, repeat(ctx));
});
