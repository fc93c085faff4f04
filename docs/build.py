#!/usr/bin/env python
"""Builds the documentation, without network, into the folder that the server serves.

`make docs` and tests/shape call it with --strict: a dead link or anchor, a missing image, or a page in no table of
contents is then an error. hatch_build.py calls it without, so that such a mistake keeps nobody from installing a
checkout; nothing happens then while the folder's stamp holds the digest of docs/.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SITE = DOCS.parent / "src" / "commonage" / "portal" / "docs_site"


def digest() -> str:
    """SHA-256 of the names and contents of all files in docs/."""
    sums = hashlib.sha256()
    for path in sorted(DOCS.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            sums.update(f"{path.relative_to(DOCS).as_posix()}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return sums.hexdigest()


def build(source: Path, site: Path, *, strict: bool) -> int:
    """Build `source` and replace the folder `site` as a whole. Returns Sphinx's exit status."""
    from sphinx.cmd.build import build_main

    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".docs-", dir=site.parent) as temporary:
        fresh, trees = Path(temporary) / "site", Path(temporary) / "trees"
        options = ["--quiet", "--nitpicky", *(["--fail-on-warning"] if strict else [])]
        status = build_main([*options, "-c", str(DOCS), "-d", str(trees), str(source), str(fresh)])
        if status == 0:
            (fresh / ".stamp").write_text(digest())
            shutil.rmtree(site, ignore_errors=True)
            fresh.rename(site)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="build nothing; status 1 if the site is out of date")
    parser.add_argument("--strict", action="store_true", help="build in any case; what is doubtful is an error")
    parser.add_argument("--source", type=Path, default=DOCS, help="the folder of the pages (default: docs)")
    parser.add_argument("--out", type=Path, default=SITE, help="where the site goes (default: into the package)")
    arguments = parser.parse_args()
    stamp = arguments.out / ".stamp"
    if not arguments.strict and stamp.exists() and stamp.read_text() == digest():
        return 0
    return 1 if arguments.check else build(arguments.source, arguments.out, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
