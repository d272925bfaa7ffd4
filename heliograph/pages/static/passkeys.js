// Passkeys by the browser's own JSON methods. A form with data-passkey="get" or "create" has a field, data-credential,
// for what the browser says; the options stand beside it as JSON.

const able =
  window.PublicKeyCredential &&
  PublicKeyCredential.parseRequestOptionsFromJSON &&
  PublicKeyCredential.parseCreationOptionsFromJSON;

let waiting = null;

async function ask(form, options, more) {
  waiting?.abort();
  waiting = new AbortController();
  const said = form.querySelector("[data-said]");
  for (const one of form.querySelectorAll("[data-said], [data-known]")) one.hidden = true;
  try {
    const made =
      form.dataset.passkey === "create"
        ? await navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options) })
        : await navigator.credentials.get({
            publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options),
            signal: waiting.signal,
            ...more,
          });
    form.querySelector("[data-credential]").value = JSON.stringify(made.toJSON());
    const keep = document.querySelector("input[name=keep]");
    if (keep && form.elements.keep) form.elements.keep.value = keep.checked ? "yes" : "";
    form.submit();
  } catch (error) {
    // The person looked away, or chose something else: the page stays as it is.
    if (more || error.name === "AbortError") return;
    const known = error.name === "InvalidStateError" && form.querySelector("[data-known]");
    if (known || said) (known || said).hidden = false;
  }
}

for (const form of document.querySelectorAll("form[data-passkey]")) {
  if (!able) continue;
  const options = JSON.parse(document.getElementById(form.dataset.options).textContent);
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form, options);
  });
  // In the list of the e-mail field, without a click.
  if (form.dataset.conditional !== undefined)
    PublicKeyCredential.isConditionalMediationAvailable?.().then((can) => {
      if (can) ask(form, options, { mediation: "conditional" });
    });
}
