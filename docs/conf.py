"""Sphinx's configuration: Markdown by MyST, the theme of JupyterHub's documentation, and pages that keep the portal's
content security policy. docs/build.py runs it; docs/adr/0028-build-the-documentation-with-sphinx.md says why.
"""

import hashlib
import os
import re
from pathlib import Path

from sphinx.application import Sphinx

project = "Commonage"
html_title = "Commonage"
language = "en"
extensions = ["myst_parser"]
exclude_patterns = ["_static"]
# A link to a heading is checked, too; the anchors are those of GitHub.
myst_heading_anchors = 4
nitpicky = True

html_theme = "pydata_sphinx_theme"
html_logo = html_favicon = "../src/commonage/portal/static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["commonage.css"]
html_context = {"default_mode": "auto"}
html_copy_source = html_show_sourcelink = html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "Commonage"},
    "header_links_before_dropdown": 6,
    "external_links": [{"name": "Portal", "url": "/services/commonage/"}],
    "navbar_align": "left",
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
}

_INLINE = re.compile(r"<(script|style)\b([^>]*)>(.*?)</\1>", re.DOTALL)
# For debuggers, and half of all bytes.
_NOT_SERVED = ("**/*.map", ".buildinfo", "objects.inv", "_static/webpack-macros.html")


def setup(app: Sphinx) -> None:
    app.connect("build-finished", _finish)


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir)
    for page in folder.rglob("*.html"):
        page.write_text(_without_inline(page, folder / "_inline"), encoding="utf-8")
    for pattern in _NOT_SERVED:
        for path in folder.glob(pattern):
            path.unlink()


def _without_inline(page: Path, target: Path) -> str:
    """Move scripts and styles of a page to files, as `script-src 'self'` and `style-src 'self'` refuse inline ones."""

    def move(found: re.Match[str]) -> str:
        tag, attributes, text = found.groups()
        if "src=" in attributes or not text.strip():
            return found[0]
        name = hashlib.sha256(text.encode()).hexdigest()[:12] + (".js" if tag == "script" else ".css")
        target.mkdir(exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")
        address = os.path.relpath(target / name, page.parent)
        return f'<script src="{address}"></script>' if tag == "script" else f'<link rel="stylesheet" href="{address}">'

    return _INLINE.sub(move, page.read_text(encoding="utf-8"))
