"""Finds the values of the settings: in flags, then COMMONAGE_* variables, then commonage.toml, then the defaults."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from commonage.server import ServerError
from commonage.server.settings.server import AUTO
from commonage.server.settings.settings import (
    DEFAULT,
    ENV_PREFIX,
    FLAGS,
    TABLES,
    Resolved,
    Settings,
    allowed,
    row_of,
    variable_of,
)

FILE_NAME = "commonage.toml"
CONFIG_VARIABLE = "COMMONAGE_CONFIG"
# Variables that are not settings of the server: those of the client and of the hub.
_NOT_SETTINGS = frozenset({"CONFIG", "URL", "TOKEN", "HUB_SETTINGS"})
_TEST_PREFIX = "TEST_"
_WORKLOAD_VARIABLE = "COMMONAGE_WORKLOAD_ID"  # set inside a workload, with other variables that are not settings
_HTTPS_PORT = 443
_MAX_BYTES = 1024 * 1024
_HEADER = re.compile(r"\s*(?P<list>\[)?\[\s*(?P<name>[\w.-]+)\s*\]")
_KEY = re.compile(r"\s*(?P<key>[\w-]+(?:\s*\.\s*[\w-]+)*)\s*=")


class SettingsError(ServerError):
    """A setting is invalid. The message names its source, the value, and what is allowed."""


def resolve(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    config: Path | None = None,
) -> Resolved:
    """Combine all sources. A flag with the value None is not set.

    `environ` and `folder` default to the environment and the current folder of this process. The file is `config`,
    else that of COMMONAGE_CONFIG, else commonage.toml in `folder`, else the one in the data folder. Raises
    SettingsError.
    """
    environ = os.environ if environ is None else environ
    folder = Path.cwd() if folder is None else folder
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(source: Mapping[str, tuple[Any, str]]) -> None:
        for name, (value, origin) in source.items():
            if name not in values:
                values[name], origins[name] = value, origin

    take({name: (value, f"flag {_flag(name)}") for name, value in flags.items() if value is not None})
    take(_from_environment(environ))
    file = _file(environ, folder, config, values)
    if file is not None:
        take(_from_file(file))
    settings = _with_domain(_validated(values, origins, file), origins)
    # A path in the file is relative to the file; other paths are relative to the current folder.
    anchored = {
        name: (file.parent if file is not None and origins.get(name, "").startswith(str(file)) else folder) / value
        for name in Settings.model_fields
        if isinstance(value := getattr(settings, name), Path)
    }
    settings = settings.model_copy(update=anchored)
    return Resolved(settings, {name: origins.get(name, DEFAULT) for name in Settings.model_fields}, file)


def _with_domain(settings: Settings, origins: dict[str, str]) -> Settings:
    """The settings that follow from `domain`. Raises SettingsError for those that contradict it."""
    if settings.domain is None:
        return settings
    because = origins["domain"]
    if settings.public_url is not None:
        raise SettingsError(
            f"{origins['public_url']}: public_url is for a proxy of your own in front of the server, and domain "
            f"({because}) starts one. Remove one of the two."
        )
    if settings.bind not in ("127.0.0.1", "::1"):
        raise SettingsError(
            f"{origins['bind']}: bind = {settings.bind} would serve plain HTTP to others, next to HTTPS of "
            f"domain ({because}). Remove bind; https_bind sets the address for HTTPS."
        )
    if settings.children != "own":
        raise SettingsError(
            f"{origins['children']}: children = {settings.children}, but domain ({because}) starts Caddy as a child. "
            "In containers, Caddy has a container of its own: set COMMONAGE_SITE there, and remove domain."
        )
    port = "" if settings.https_port == _HTTPS_PORT else f":{settings.https_port}"
    derived = {"public_url": f"https://{settings.domain}{port}"}
    if settings.session_host == AUTO:
        derived["session_host"] = f"*.{settings.domain}"
    origins |= dict.fromkeys(derived, f"domain ({because})")
    return settings.model_copy(update=derived)


def _flag(name: str) -> str:
    return next((flag for flag, setting in FLAGS.items() if setting == name), f"--{name.replace('_', '-')}")


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        rest = variable.removeprefix(ENV_PREFIX)
        name = rest.lower()
        if name in Settings.model_fields and variable == variable_of(name):
            found[name] = (value, variable)
        elif rest not in _NOT_SETTINGS and not rest.startswith(_TEST_PREFIX) and _WORKLOAD_VARIABLE not in environ:
            raise SettingsError(f"the variable {variable} is not a setting of the server{_suggest(name, variable_of)}")
    for name in TABLES & found.keys():
        raise SettingsError(f"{name} is a list of tables, which a variable cannot hold. Write it in {FILE_NAME}.")
    return found


def _file(environ: Mapping[str, str], folder: Path, config: Path | None, values: Mapping[str, Any]) -> Path | None:
    named = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named is not None:
        if not (folder / named).exists():
            raise SettingsError(f"the settings file {folder / named} does not exist")
        return folder / named
    data_dir = values.get("data_dir", Settings.model_fields["data_dir"].default)
    candidates = [folder / FILE_NAME, folder / Path(data_dir).expanduser() / FILE_NAME]
    return next((path for path in candidates if path.is_file()), None)


def _from_file(path: Path) -> dict[str, tuple[Any, str]]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SettingsError(f"{path} is larger than 1 MiB, which is too large for a settings file")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"the settings file {path} is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the settings file {path} is not valid TOML: {error}") from error
    for name in table:
        if name not in Settings.model_fields:
            raise SettingsError(f"{path}: {name!r} is not a setting of the server{_suggest(name, str)}")
    return {name: (value, str(path)) for name, value in table.items()}


def _suggest(name: str, write: Any) -> str:
    close = difflib.get_close_matches(name, list(Settings.model_fields), n=1, cutoff=0.6)
    return f"; did you mean {write(close[0])}?" if close else "; `commonage config` lists all settings"


def _validated(values: dict[str, Any], origins: Mapping[str, str], file: Path | None) -> Settings:
    for name in ("data_dir", "password_file", "hub_config", "acme_root"):
        if isinstance(values.get(name), str) and values[name]:
            values[name] = Path(values[name]).expanduser()
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        origin = origins.get(name, DEFAULT)
        if file is not None and origin == str(file):
            line = line_of(file.read_text(encoding="utf-8"), first["loc"])
            origin = f"{origin}, line {line}" if line else origin
        raise SettingsError(_sentence(name, values.get(name), origin, first)) from None


def _sentence(name: str, value: object, origin: str, error: Any) -> str:
    """`COMMONAGE_PORT: port is 'http', but it takes a port from 1 to 65535 (why)`."""
    row = row_of(name)
    shown = "this value" if row.secret else repr(value if len(str(value)) <= 60 else str(value)[:57] + "...")
    why = str(error["msg"]).removeprefix("Value error, ").removesuffix(".")
    if error["type"] == "extra_forbidden" and (known := _fields_at(error["loc"])):
        why = f"no such setting. Settings here: {', '.join(known)}"
    if name in TABLES or name == "node_labels":
        return f"{origin}: {_where(value, error['loc'])}: {why[0].lower()}{why[1:]}"
    return f"{origin}: {name} cannot be {shown}; it takes {allowed(name)} ({why[0].lower()}{why[1:]})"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    models: list[type[BaseModel]] = [Settings]
    for part in location[:-1]:
        if isinstance(part, str):
            models = [found for one in models if part in one.model_fields for found in _models_in(one, part)]
    return [name for one in models for name in one.model_fields]


def _models_in(model: type[BaseModel], name: str) -> list[type[BaseModel]]:
    annotation = model.model_fields[name].annotation
    return [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, BaseModel)]


def _where(value: object, location: tuple[int | str, ...]) -> str:
    """`tenants.optics.nominal.gpus`: an entry by its name, if it has one."""
    parts = [str(part) for part in location if not isinstance(part, str) or "-" not in part]
    if isinstance(value, list) and len(parts) > 1 and isinstance(value[int(parts[1])], dict):
        parts[1] = str(value[int(parts[1])].get("name", parts[1]))
    return ".".join(parts)


def line_of(text: str, location: Sequence[int | str]) -> int | None:
    """The line, from 1, of the value at `location` (`("tenants", 0, "nominal", "gpus")`), or of the table around it.

    Reads only headers and keys; None if it finds nothing.
    """
    wanted = [str(part) for part in location if isinstance(part, str)]
    index = next((part for part in location if isinstance(part, int)), None)
    table: list[str] = []
    entries = -1
    found = None
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            table = header["name"].split(".")
            entries += header["list"] is not None and table == wanted[:1]
            here = table
        elif key is not None:
            here = [*table, *(part.strip() for part in key["key"].split("."))]
        else:
            continue
        in_entry = index is None or entries == index or (not table and here == wanted[:1])
        if in_entry and here == wanted[: len(here)]:
            found = number
    return found
