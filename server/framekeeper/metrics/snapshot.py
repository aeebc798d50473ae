"""Gauges that are replaced as a whole, so that what is gone from the source is gone from the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

#: Values by label values, in the order of the family's labels.
Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class Family:
    """A gauge: its name with unit, its meaning, its labels."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()


class Snapshot(Collector):
    """Families that are written together. A scrape sees one state of them, never half of two."""

    def __init__(self, *families: Family) -> None:
        self.families = families
        self._values: Mapping[Family, Values] = {}

    def replace(self, values: Mapping[Family, Values]) -> None:
        """Show these values, and no others of before."""
        self._values = dict(values)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """For the registry."""
        values = self._values
        for family in self.families:
            metric = GaugeMetricFamily(family.name, family.meaning, labels=family.labels)
            for labels, value in values.get(family, {}).items():
                metric.add_metric(labels, value)
            yield metric
