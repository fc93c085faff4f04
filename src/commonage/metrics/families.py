"""Metric families while they are filled. Used by `collect` and the functions that it calls."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from commonage.metrics.series import BY_NAME

MIB = 1024 * 1024


class Families:
    """Metric families by name, made when their first value comes."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Give a series of the table its value; labels in the table's order. Unknown figures are left out."""
        if value is None:
            return
        series = BY_NAME[name]
        family = self._families.get(name)
        if family is None:
            # prometheus_client wants a counter without its suffix, and adds it again.
            plain = name.removesuffix("_total")
            family = self._families[name] = Metric(plain, series.help, series.kind)
        family.add_sample(name, dict(zip(series.labels, labels, strict=True)), value)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())
