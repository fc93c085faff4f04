"""Stands in for code-server and RStudio: a page on the Unix socket of the option, which shows a file of the folder."""

import html
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

options = dict(word.partition("=")[::2] for word in sys.argv[1:])
socket = options.get("--socket") or options["--www-socket"]
folder = Path(sys.argv[-1] if "--socket" in options else ".")


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query).get("file", [""])[0]
        text = (folder / asked).read_text() if asked else options.get("--www-root-path", "")
        body = f"<!doctype html><title>stand-in</title><pre>{html.escape(text)}</pre>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "socket"


socketserver.ThreadingUnixStreamServer(socket, Page).serve_forever()
