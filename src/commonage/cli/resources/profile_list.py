"""A `profile_list` of KubeSpawner as documents of profiles and environments. Pure; used by `commonage profiles import`.

Whatever has no counterpart is named, and nothing is guessed.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]

MOST = 24
"""Most profiles that are made of the choices of one."""
_GPU = "nvidia.com/gpu"
_GUARANTEES, _LIMITS = "extra_resource_guarantees", "extra_resource_limits"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)", re.ASCII)
_MIB = {"": 1 / 1024**2, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_KNOWN = frozenset({"display_name", "slug", "description", "default", "kubespawner_override", "profile_options"})


class NotProfiles(ValueError):
    """The file has no profile_list; the message says what it has."""


@dataclass(slots=True)
class Imported:
    """`notes` name each key that is not kept, after the profile that it is in."""

    documents: list[Document] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_profiles(content: object) -> list[Document]:
    """The profiles of a file: a list, a mapping of slugs, or values of Zero to JupyterHub. Raises NotProfiles."""
    for path in (("singleuser", "profileList"), ("hub", "config", "KubeSpawner", "profile_list"), ("profile_list",)):
        inner = content
        for key in path:
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if inner:
            content = inner
            break
    if isinstance(content, Mapping):
        named = [{"slug": str(slug), **one} for slug, one in content.items() if isinstance(one, Mapping)]
        content = named if len(named) == len(content) else None
    if not isinstance(content, list) or not content:
        raise NotProfiles(
            "it has no profiles: it needs a list of them, or singleuser.profileList, or "
            "hub.config.KubeSpawner.profile_list; a Python function cannot be imported"
        )
    for number, one in enumerate(content, 1):
        if not isinstance(one, Mapping) or not isinstance(one.get("display_name"), str):
            raise NotProfiles(f"profile {number} is no mapping with a display_name")
    return [dict(one) for one in content]


def import_profiles(profiles: Sequence[Document], tenant: str = "") -> Imported:
    """The documents, environments first. `tenant`: only its members see the profiles and environments."""
    made = _Import(tenant)
    # The profile that is selected by default is shown first.
    for profile in sorted(profiles, key=lambda one: not one.get("default")):
        made.add(profile)
    return Imported([*made.environments.values(), *made.profiles.values()], made.notes)


class _Import:
    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self.environments: dict[str, Document] = {}
        self.profiles: dict[str, Document] = {}
        self.notes: list[str] = []

    def add(self, profile: Document) -> None:
        title = profile["display_name"]
        unknown = sorted(set(profile) - _KNOWN)
        self._say(title, *(f"{key} is not known" for key in unknown))
        base = _mapping(profile.get("kubespawner_override"))
        variants = self._variants(title, _mapping(profile.get("profile_options")))
        for words, overrides in variants:
            full = f"{title} ({', '.join(words)})" if words else title
            merged = base
            for one in overrides:
                merged = _merged(merged, one)
            slug = str(profile.get("slug") or title)
            name = _free(_slug("-".join([slug, *words])), self.profiles)
            self.profiles[name] = self._profile(name, full, profile, merged)

    def _variants(self, title: str, options: Document) -> Iterator[tuple[list[str], list[Document]]]:
        """One for each combination of choices, that of the default choices first; of too many only that one."""
        axes: list[list[tuple[str, Document]]] = []
        for key, given in options.items():
            option = _mapping(given)
            self._say(title, *_unlisted(key, option))
            choices = [
                (str(_mapping(one).get("display_name") or name), _mapping(one))
                for name, one in _mapping(option.get("choices")).items()
            ]
            for label, choice in choices:
                extra = sorted(set(choice) - {"display_name", "default", "kubespawner_override"})
                self._say(title, *(f"profile_options.{key}: {label}: {one} is not known" for one in extra))
            if choices:
                ordered = sorted(choices, key=lambda one: not one[1].get("default"))
                axes.append([(label, _mapping(one.get("kubespawner_override"))) for label, one in ordered])
        combined = list(itertools.islice(itertools.product(*axes), MOST + 1))
        if len(combined) > MOST:
            self._say(title, f"profile_options has more than {MOST} combinations; only the default choices are kept")
            combined = combined[:1]
        for one in combined:
            yield [label for label, _ in one], [override for _, override in one]

    def _profile(self, name: str, shown: str, profile: Document, override: Document) -> Document:
        title, description = profile["display_name"], str(profile.get("description") or "")
        rest = {key: value for key, value in override.items() if value is not None}
        if len(description) > 500:
            self._say(title, "description is longer than 500 characters and is cut")
        found: Document = {"kind": "Profile", "name": name, "title": shown[:128]}
        found |= {"description": description[:500]} if description else {}
        variables = _mapping(rest.pop("environment", None))
        image = rest.pop("image", None) or rest.pop("image_spec", None)
        if image is not None:
            found["environment"] = self._environment(title, str(image), variables)
        elif variables:
            self._say(title, "environment needs an image here: add the variables to an environment")
        found |= self._cpus(title, rest.pop("cpu_guarantee", None), rest.pop("cpu_limit", None))
        found |= self._memory(title, rest.pop("mem_guarantee", None), rest.pop("mem_limit", None))
        found |= self._gpus(title, _mapping(rest.pop(_GUARANTEES, None)), _mapping(rest.pop(_LIMITS, None)))
        labels = _mapping(rest.pop("node_selector", None))
        found |= {"labels": {str(key): str(value) for key, value in labels.items()}} if labels else {}
        found |= {"tenants": [self._tenant]} if self._tenant else {}
        found |= {"order": len(self.profiles)} if self.profiles else {}
        self._say(title, *(f"kubespawner_override.{key} is not kept" for key in sorted(rest)))
        return found

    def _environment(self, title: str, image: str, variables: Document) -> str:
        """The name of the environment with this image and these variables."""
        texts = {}
        for key, value in variables.items():
            if isinstance(value, Mapping):
                self._say(title, f"kubespawner_override.environment.{key} is not kept: it has no value of its own")
            elif value is not None:
                texts[str(key)] = str(value)
        for name, one in self.environments.items():
            if (one["image"], one.get("variables", {})) == (image, texts):
                return name
        plain = re.sub(r"[^a-z0-9._-]+", "-", image.rpartition("/")[2].partition("@")[0].lower().replace(":", "-"))
        name = _free(plain.strip("-._")[:56] or "image", self.environments)
        made: Document = {"kind": "Environment", "name": name, "title": image, "image": image}
        made |= {"kinds": ["session", "job"]} | ({"variables": texts} if texts else {})
        made |= {"tenant": self._tenant} if self._tenant else {}
        self.environments[name] = made
        return name

    def _cpus(self, title: str, guarantee: object, limit: object) -> Document:
        """Kept is what is guaranteed; cores beyond it are used while they are idle."""
        cpus = [_number(one) for one in (guarantee, limit)]
        if any(given is not None and found is None for given, found in zip((guarantee, limit), cpus, strict=True)):
            self._say(title, "cpu_guarantee or cpu_limit is no number and is not kept")
        kept = cpus[0] or cpus[1]
        if cpus[0] and cpus[1] and cpus[0] != cpus[1]:
            self._say(title, f"cpu_limit {limit} is not kept: {kept:g} CPUs are requested, idle cores may be used")
        return {"cpus": int(kept) if kept.is_integer() else kept} if kept else {}

    def _memory(self, title: str, guarantee: object, limit: object) -> Document:
        """Kept is the limit: here a workload gets all the memory that it may use."""
        sizes = [_mib(one) for one in (guarantee, limit)]
        if any(given is not None and found is None for given, found in zip((guarantee, limit), sizes, strict=True)):
            self._say(title, "mem_guarantee or mem_limit is no amount of memory and is not kept")
        kept = sizes[1] or sizes[0]
        if sizes[0] and sizes[1] and sizes[0] != sizes[1]:
            self._say(title, f"mem_guarantee {guarantee} is not kept: all of mem_limit is requested")
        return {"memory": f"{kept}MiB"} if kept else {}

    def _gpus(self, title: str, guarantees: Document, limits: Document) -> Document:
        amounts = {**guarantees, **limits}
        others = sorted(key for key, value in amounts.items() if key != _GPU and value is not None)
        self._say(title, *(f"{_LIMITS}.{key} is not kept: request a share in `gpus`" for key in others))
        wanted = str(amounts.get(_GPU) or "0")
        if not re.fullmatch(r"\d{1,4}", wanted, re.ASCII):
            self._say(title, f"{_LIMITS}.{_GPU} is no number and is not kept")
            return {}
        return {"gpus": str(int(wanted))} if int(wanted) else {}

    def _say(self, title: str, *notes: str) -> None:
        for note in notes:
            text = f"{title}: {note}."
            if text not in self.notes:
                self.notes.append(text)


def _unlisted(key: str, option: Document) -> list[str]:
    extra = sorted(set(option) - {"display_name", "choices", "unlisted_choice"})
    found = [f"profile_options.{key}.{one} is not known" for one in extra]
    if _mapping(option.get("unlisted_choice")).get("enabled"):
        found.append(
            f"profile_options.{key}.unlisted_choice is not kept: the launch form takes any CPUs, memory and GPUs, and "
            "users build environments of their own"
        )
    return found


def _mapping(value: object) -> Document:
    return dict(value) if isinstance(value, Mapping) else {}


def _merged(base: Document, change: Document) -> Document:
    """As KubeSpawner does it: mappings are merged at every depth, other values replaced."""
    merged = copy.deepcopy(base)
    for key, value in change.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, Mapping)
        merged[key] = _merged(_mapping(before), _mapping(value)) if both else value
    return merged


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 < number < 100_000 else None


def _mib(value: object) -> int | None:
    """KubeSpawner's sizes: bytes, or a number with K, M, G or T, in powers of 1024."""
    found = _SIZE.fullmatch(str(value).strip())
    return round(float(found[1]) * _MIB[found[2]]) or None if found else None


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:56].strip("-") or "profile"


def _free(name: str, taken: Mapping[str, Any]) -> str:
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(one for one in names if one not in taken)
