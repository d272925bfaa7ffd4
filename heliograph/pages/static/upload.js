// A file on its way says how far it is: fetch knows no progress of uploads, so this is an XMLHttpRequest. Files can be
// dropped on their field. Without this the form is sent as any other.

// First, so that a form goes out after the session was looked at, and its file and text outlive one that has ended.
import { isReadable } from "./session.js";

function attach(form) {
  const file = form.querySelector('input[type="file"]');
  const shown = form.querySelector("[data-progress]");
  const bar = shown.querySelector("progress"), said = shown.querySelector("output");
  const drop = form.querySelector("[data-drop]");

  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("is-over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) file.files = event.dataTransfer.files;
    });
  }

  // A second click while the file is on its way, or while the page that follows loads, sends it no second time, and
  // takes nothing from the first.
  let isUnderWay = false, following = "";
  form.addEventListener("change", () => (following = ""));
  addEventListener("pageshow", () => (following = ""));
  document.addEventListener("submit", (event) => {
    if (event.target !== form || event.defaultPrevented) return;
    event.preventDefault();
    if (isUnderWay) return;
    if (following) return location.assign(following);
    isUnderWay = true;
    const request = new XMLHttpRequest();
    const number = new Intl.NumberFormat(document.documentElement.lang, { style: "percent" });
    shown.hidden = false;
    request.upload.addEventListener("progress", (at) => {
      if (!at.lengthComputable) return;
      bar.value = (100 * at.loaded) / at.total;
      said.textContent = at.loaded < at.total ? `${form.dataset.sending} ${number.format(at.loaded / at.total)}` : form.dataset.stored;
    });
    request.addEventListener("loadend", () => (isUnderWay = false));
    request.addEventListener("error", async () => {
      bar.value = 0;
      said.textContent = (await isReadable(file.files[0])) ? form.dataset.lost : form.dataset.changed;
      document.dispatchEvent(new CustomEvent("held-back"));
    });
    request.addEventListener("load", () => {
      if (request.status < 400 && request.responseURL) {
        following = request.responseURL;
        return location.assign(following);
      }
      const main = request.response?.querySelector("main");
      if (!main) return form.submit();
      document.querySelector("main").replaceWith(document.importNode(main, true));
      document.getElementById("summary")?.focus();
      for (const one of document.querySelectorAll("form[data-upload]")) attach(one);
    });
    request.responseType = "document";
    request.open("POST", form.action);
    request.send(new FormData(form));
  });
}

for (const form of document.querySelectorAll("form[data-upload]")) attach(form);
