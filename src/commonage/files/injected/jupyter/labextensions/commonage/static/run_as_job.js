// Extension of JupyterLab: "Run as Job" in a notebook's toolbar, in the menu Run, and in the command palette.
// It is a container of webpack's module federation, written by hand, so that it needs no build. The session's Jupyter
// server submits the job (commonage_server.py); the browser has no token of the platform.
(() => {
  "use strict";
  const COMMAND = "commonage:run-as-job";
  const POLL_MS = 3000;
  let scope = {};

  // A module that JupyterLab shares with its extensions.
  async function shared(name) {
    const versions = scope[name] || {};
    const first = Object.keys(versions)[0];
    if (first === undefined) throw new Error(`JupyterLab does not share ${name}`);
    return (await versions[first].get())();
  }

  function pluginOf(notebook, apputils, components, mainmenu, services) {
    async function ask(manager, path, options) {
      const settings = manager.serverSettings;
      const url = settings.baseUrl + path;
      const response = await services.ServerConnection.makeRequest(url, options, settings);
      const body = await response.json().catch(() => ({}));
      if (!response.ok) throw new Error(body.message || body.reason || `The session answered ${response.status}.`);
      return body;
    }

    async function run(app, panel) {
      const { Notification } = apputils;
      const manager = app.serviceManager;
      await panel.context.save();
      const path = manager.contents.localPath(panel.context.path);
      const name = path.split("/").pop();
      let job;
      try {
        job = await ask(manager, "commonage/jobs", { method: "POST", body: JSON.stringify({ path }) });
      } catch (error) {
        Notification.error(`${name} was not submitted. ${error.message}`, { autoClose: false });
        return;
      }
      const id = Notification.emit(`${name} is submitted as job ${job.id}.`, "in-progress", { autoClose: false });
      const address = `commonage/jobs/${job.id}?path=${encodeURIComponent(path)}`;
      for (;;) {
        await new Promise((done) => setTimeout(done, POLL_MS));
        let found;
        try {
          found = await ask(manager, address, {});
        } catch (error) {
          continue; // the session or the platform does not answer now
        }
        const state = found.state.replace("_", " ");
        if (!found.ended) {
          const why = found.state === "running" ? "" : ` ${found.reason}`;
          Notification.update({ id, message: `Job ${job.id} of ${name}: ${state}.${why}` });
          continue;
        }
        const open = { label: "Open result", callback: () => app.commands.execute("docmanager:open", { path: found.result }) };
        Notification.update({
          id,
          type: found.state === "succeeded" ? "success" : "error",
          message: `Job ${job.id} of ${name}: ${state}. ${found.state === "succeeded" ? "" : found.reason}`,
          actions: found.result ? [open] : [],
          autoClose: false,
        });
        return;
      }
    }

    return {
      id: "commonage:run-as-job",
      description: "Runs a notebook as a job of Commonage.",
      autoStart: true,
      requires: [notebook.INotebookTracker],
      optional: [apputils.ICommandPalette, mainmenu.IMainMenu],
      activate: (app, tracker, palette, menu) => {
        app.commands.addCommand(COMMAND, {
          label: "Run as Job",
          caption: "Run this notebook as a job, with the environment and the request of this session",
          isEnabled: () => tracker.currentWidget !== null,
          execute: () => tracker.currentWidget && run(app, tracker.currentWidget),
        });
        if (palette) palette.addItem({ command: COMMAND, category: "Notebook Operations" });
        if (menu) menu.runMenu.addGroup([{ command: COMMAND }], 900);
        app.docRegistry.addWidgetExtension("Notebook", {
          createNew: (panel) => {
            const button = new components.ToolbarButton({
              label: "Run as Job",
              tooltip: "Run this notebook as a job, with the environment and the request of this session",
              onClick: () => run(app, panel),
            });
            button.addClass("commonage-run-as-job");
            panel.toolbar.insertItem(11, "commonageRunAsJob", button);
            return button;
          },
        });
      },
    };
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB.commonage = {
    init: (given) => {
      scope = given;
    },
    get: async () => {
      const names = ["notebook", "apputils", "ui-components", "mainmenu", "services"];
      const modules = await Promise.all(names.map((name) => shared(`@jupyterlab/${name}`)));
      const plugin = pluginOf(...modules);
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
