"""Windows of text: a client adds one, the page shows all."""

import html

from tornado.web import Application as Base
from tornado.web import RequestHandler


class Application(Base):
    def __init__(self, port: int, base_url: str, env_path: str) -> None:
        self.windows: list[str] = []
        super().__init__([(f"{base_url}/", Page), (f"{base_url}/events", Events)])


class Page(RequestHandler):
    def get(self) -> None:
        shown = "".join(f'<div class="window">{html.escape(one)}</div>' for one in self.application.windows)
        self.finish(f"<!doctype html><title>visdom</title>{shown}")


class Events(RequestHandler):
    def post(self) -> None:
        self.application.windows.append(self.request.body.decode())
