// The launch form: buttons fill in the GPU request or all of a profile, environments depend on the kind, a second click sends nothing.
"use strict";

(() => {
  const form = document.getElementById("launch");
  const gpus = form.elements.gpus;

  function showChoice() {
    for (const choice of form.querySelectorAll("[data-fill]")) {
      const values = Object.entries(JSON.parse(choice.dataset.fill));
      const fits = values.every(([name, value]) => form.elements[name].value.trim() === value);
      choice.setAttribute("aria-pressed", String(fits));
    }
    for (const choice of form.querySelectorAll("[data-set]")) {
      choice.setAttribute("aria-pressed", String(choice.dataset.value === gpus.value.trim()));
    }
  }

  function showEnvironments() {
    const kind = form.elements.kind.value;
    const select = form.elements.environment;
    for (const option of select.options) {
      const fits = !option.dataset.kinds || option.dataset.kinds.split(" ").includes(kind);
      option.hidden = option.disabled = !fits;
      if (!fits && option.selected) select.value = "";
    }
  }

  form.addEventListener("click", (event) => {
    const profile = event.target.closest("[data-fill]");
    if (profile) {
      for (const [name, value] of Object.entries(JSON.parse(profile.dataset.fill))) {
        const field = form.elements[name];
        field.value = value;
        const scheduling = field.closest("details");
        if (value && scheduling) scheduling.open = true;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }
      showEnvironments();
      showChoice();
      return;
    }
    const setter = event.target.closest("[data-set]");
    if (!setter) return;
    const field = form.elements[setter.dataset.set];
    field.value = setter.dataset.value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
  form.addEventListener("input", showChoice);
  form.addEventListener("change", showEnvironments);
  form.addEventListener("submit", () => {
    const go = document.getElementById("go");
    go.disabled = true;
    // Without an answer the form can be sent again. Its key makes the submission idempotent.
    setTimeout(() => (go.disabled = false), 8000);
  });
  addEventListener("pageshow", () => (document.getElementById("go").disabled = false));
  document.addEventListener("htmx:after:swap", () => {
    for (const error of form.querySelectorAll(".error")) {
      const field = form.elements[error.id.replace("error-", "")];
      if (field instanceof Element) field.toggleAttribute("aria-invalid", false);
      if (field instanceof Element && error.textContent.trim()) field.setAttribute("aria-invalid", "true");
    }
  });

  showChoice();
  showEnvironments();
})();
