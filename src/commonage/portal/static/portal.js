// For every page: local times, the theme, notices, confirmation dialogs, and the live indicator.
// Pages can be read and forms can be sent without it.
"use strict";

(() => {
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const hour = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const second = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });

  function duration(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return s < 600 && s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
    if (s < 86400) return s % 3600 >= 60 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 3600)} h`;
    const hours = Math.floor((s % 86400) / 3600);
    return hours && s < 7 * 86400 ? `${Math.floor(s / 86400)} d ${hours} h` : `${Math.floor(s / 86400)} d`;
  }

  function format(when, form) {
    const away = (when - Date.now()) / 1000;
    if (form === "clock") return Math.abs(away) < 43200 ? second.format(when) : `${day.format(when)} ${hour.format(when)}`;
    if (form === "moment") return `${day.format(when)} ${hour.format(when)}`;
    if (form === "for") return duration(-away);
    if (form === "left") return away > 0 ? `in ${duration(away)}` : "now";
    if (away > -5) return "just now";
    return away > -30 * 86400 ? `${duration(-away)} ago` : day.format(when);
  }

  function showTimes(root) {
    for (const element of root.querySelectorAll("time[data-form]")) {
      const when = new Date(element.dateTime);
      const text = format(when, element.dataset.form);
      if (element.textContent !== text) element.textContent = text;
      if (!element.title) element.title = whole.format(when);
    }
  }

  // Forms with local times use the browser's time zone, unless the user has entered another.
  for (const field of document.querySelectorAll("input[data-zone]")) {
    const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (field.value === "UTC" && zone) field.value = zone;
  }

  // On a phone the pages are one row that scrolls: the present one is shown.
  document.querySelector(".nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // --- theme ----------------------------------------------------------------------------------------------------

  const names = { "": ["Auto", "system"], light: ["Light", "light"], dark: ["Dark", "dark"] };
  const button = document.getElementById("theme");

  function showTheme() {
    const theme = document.documentElement.dataset.theme || "";
    document.getElementById("theme-name").textContent = names[theme][0];
    button.setAttribute("aria-label", `Theme: ${names[theme][1]}`);
    button.title = `Theme: ${names[theme][1]}`;
  }

  button.addEventListener("click", () => {
    const order = ["", "light", "dark"];
    const next = order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % 3];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    try {
      localStorage.setItem("commonage-theme", next);
    } catch { /* storage is blocked: the choice holds for this page only */ }
    showTheme();
    document.dispatchEvent(new Event("theme"));
  });

  // --- notices and confirmations --------------------------------------------------------------------------------------

  function notice(text, tone) {
    const element = document.createElement("p");
    element.className = tone === "bad" ? "notice tone-bad" : "notice";
    element.textContent = text;
    document.getElementById("notices").append(element);
    setTimeout(() => element.remove(), tone === "bad" ? 10000 : 5000);
  }

  document.addEventListener("notice", (event) => notice(event.detail.text, event.detail.tone));

  const dialog = document.getElementById("ask");

  function ask(question, yes, onYes, onNo) {
    document.getElementById("ask-text").textContent = question;
    document.getElementById("ask-yes").textContent = yes || "Stop";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => (dialog.returnValue === "yes" ? onYes() : onNo()), { once: true });
    dialog.showModal();
  }

  document.addEventListener("htmx:confirm", (event) => {
    const { ctx, issueRequest, dropRequest } = event.detail;
    if (!ctx.confirm || !dialog.showModal) return;
    event.preventDefault();
    ask(ctx.confirm, ctx.sourceElement.dataset.yes, issueRequest, dropRequest);
  });

  // Forms whose answer is a page are not htmx's.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const question = form.getAttribute("hx-confirm");
    if (!question || form.hasAttribute("hx-post") || !dialog.showModal) return;
    event.preventDefault();
    ask(question, form.dataset.yes, () => form.submit(), () => {});
  });

  document.addEventListener("htmx:error", () => notice("The server did not answer. Nothing was changed. Try again.", "bad"));

  // The portal answers a request for a part of a page with a trigger. While the server is down, the proxy sends a whole
  // page, which must not be swapped into this one.
  document.addEventListener("htmx:response:error", (event) => {
    const { ctx } = event.detail;
    if (ctx.response.status !== 503 || ctx.hx.trigger) return;
    [ctx.text, ctx.swap] = ["", "none"];
    notice("The server is starting or restarting. Try again in a few seconds.", "bad");
  });

  // --- live -------------------------------------------------------------------------------------------------------

  function showLive(state, text) {
    const element = document.querySelector(".live");
    if (!element) return;
    element.classList.remove("is-on", "is-off", "is-done");
    element.classList.add(state);
    element.querySelector(".live-text").textContent = text;
  }

  // Signed out or not found: the page says which. Reload only if the server answers; otherwise the page would be lost.
  async function showWhyNot() {
    const health = new URL("api/v1/health", document.querySelector(".brand").href);
    const answer = await fetch(health).catch(() => null);
    if (answer?.ok) location.reload();
  }

  document.addEventListener("htmx:sse:after:connection", () => showLive("is-on", "live"));
  document.addEventListener("htmx:sse:error", (event) => {
    if ([401, 403, 404].includes(event.detail.status)) showWhyNot();
    showLive("is-off", event.detail.status === 429 ? "too many live pages" : "reconnecting");
  });
  document.addEventListener("htmx:sse:close", (event) => {
    if (event.detail.reason === "message") showLive("is-done", "complete");
  });

  // --- keys and menus ---------------------------------------------------------------------------------------

  document.addEventListener("keydown", (event) => {
    const menu = document.querySelector(".menu[open]");
    if (event.key === "Escape" && menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    const wanted = !typing && !event.ctrlKey && !event.metaKey && !event.altKey && document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (wanted) {
      event.preventDefault();
      wanted.focus();
    }
  });

  document.addEventListener("click", (event) => {
    const menu = document.querySelector(".menu[open]");
    if (menu && !menu.contains(event.target)) menu.open = false;
  });

  document.addEventListener("htmx:after:swap", () => showTimes(document));
  showTheme();
  showTimes(document);
  setInterval(() => document.hidden || showTimes(document), 1000);
})();
