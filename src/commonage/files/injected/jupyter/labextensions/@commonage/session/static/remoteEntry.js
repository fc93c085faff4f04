// Notifications of JupyterLab for what the owner of a session should know, with buttons for what can be done about it.
// Written by hand in the form in which JupyterLab loads built extensions, so nothing is built. It asks the session's own
// server (commonage_session.py), which asks the control plane; that is no activity.
(() => {
  "use strict";
  const NAME = "@commonage/session";
  const EVERY_MS = 10000;
  const LABELS = { "extend": "Keep for two more hours", "release-gpu": "Release GPU" };
  const DONE = { "extend": "The session is kept.", "release-gpu": "The session starts again without its GPU." };

  function config() {
    const element = document.getElementById("jupyter-config-data");
    return element ? JSON.parse(element.textContent) : {};
  }

  async function ask(path, method) {
    const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie);
    const headers = { "Content-Type": "application/json" };
    if (xsrf) headers["X-XSRFToken"] = decodeURIComponent(xsrf[1]);
    const { baseUrl = "/", token } = config();
    if (token) headers.Authorization = `token ${token}`;
    const answer = await fetch(`${baseUrl}commonage/${path}`, { method, headers, credentials: "same-origin" });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.message || `${answer.status} ${answer.statusText}`);
    return body;
  }

  function activate(app) {
    const { commands } = app;
    const shown = new Map(); // id of the notification by code of the notice
    const say = (message, type) => commands.execute("apputils:notify", { message, type, options: { autoClose: 5000 } });

    async function act(what) {
      try {
        const { notices } = await ask(what, "POST");
        await say(DONE[what], "success");
        await show(notices);
      } catch (error) {
        await say(error.message, "error");
      }
    }

    for (const [what, label] of Object.entries(LABELS)) {
      commands.addCommand(`commonage:${what}`, { label: `Commonage: ${label}`, execute: () => act(what) });
    }

    async function show(notices) {
      const codes = new Set(notices.map((one) => one.code));
      for (const [code, id] of shown) {
        if (!codes.has(code)) {
          shown.delete(code);
          await commands.execute("apputils:dismiss-notification", { id });
        }
      }
      for (const { code, message, offers } of notices) {
        if (shown.has(code)) {
          await commands.execute("apputils:update-notification", { id: shown.get(code), message });
          continue;
        }
        const actions = offers.map((what) => ({ label: LABELS[what], commandId: `commonage:${what}`, args: {} }));
        const id = await commands.execute("apputils:notify", {
          message, type: "warning", options: { autoClose: false, actions },
        });
        shown.set(code, id);
      }
    }

    async function look() {
      try {
        const { notices } = await ask("notices", "GET");
        await show(notices);
      } catch { /* the server restarts, or is stopped */ }
      setTimeout(look, EVERY_MS);
    }

    app.restored.then(look);
  }

  const plugin = { id: `${NAME}:notices`, autoStart: true, activate };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: () => Promise.resolve(),
    get: () => Promise.resolve(() => ({ __esModule: true, default: plugin })),
  };
})();
