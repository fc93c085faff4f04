"""Terminal output of `commonage up`: progress of the start, sign-in, and notes for the operator."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commonage.server.secrets import Secrets
from commonage.server.settings.settings import Settings


class Terminal:
    """Prints on stdout and flushes each line."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def line(self, text: str = "") -> None:
        """One line, at once."""
        print(text, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print that a step of the start is done, and its duration."""
        began = time.monotonic()
        if sys.stdout.isatty():
            print(f"  {name} …", end="\r", flush=True)  # the next line overwrites it
        yield
        self.line(f"  {name:<26} ready after {time.monotonic() - began:.1f} s")

    def welcome(self, version: str, data: Path) -> None:
        """The first line."""
        self.line(f"Commonage {version}, data in {data}")

    def ready(self, url: str, settings: Settings, secrets: Secrets, *, first: bool) -> None:
        """Print the address and how to sign in."""
        self.line()
        self.line(f"{settings.name} is ready after {time.monotonic() - self._began:.1f} s:")
        self.line()
        self.line(f"    {url}/")
        self.line()
        for line in sign_in(settings, secrets, first=first):
            self.line(f"    {line}")
        self.line()

    def notes(self, notes: Sequence[str]) -> None:
        """Print notes for the operator."""
        for note in notes:
            self.line(f"Note: {note}")


def sign_in(settings: Settings, secrets: Secrets, *, first: bool) -> list[str]:
    """Lines with the accounts and passwords for sign-in. Passwords are shown only once, when they are made."""
    if settings.authenticator_class != "shared-password":
        # `admin` is no user there (see `hub.config`).
        named = ", ".join(name for name in settings.admin_users if name != "admin")
        admins = named or "none, unless hub_config sets some"
        return [f"Sign in with {settings.authenticator_class}; admins: {admins}."]
    admins = " or ".join(settings.admin_users)
    if not first:
        return [
            f"Sign in as {admins}, or as any other user (alice, bob, …).",
            f"Passwords: {secrets.folder}/admin_password, {secrets.folder}/users_password",
        ]
    return [
        f"Sign in as {admins:<22} password {secrets.admin_password}",
        f"or as any user (alice, bob, …)     password {secrets.users_password}",
        f"The passwords are stored in {secrets.folder}/ and are not shown again.",
    ]
