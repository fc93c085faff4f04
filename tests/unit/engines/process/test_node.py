"""The report of a node."""

import platform
from pathlib import Path

from commonage.engines.process.node import report_node
from commonage.engines.rundir.node_usage import NodeUsageReader
from commonage.engines.settings import ProcessSettings


def test_labels_of_the_admin_join_those_of_the_node(tmp_path: Path) -> None:
    own = dict(report_node(ProcessSettings(), tmp_path, None, NodeUsageReader()).labels)
    assert own == {"arch": platform.machine(), "os": "linux"}
    labels = (("zone", "basement"), ("arch", "odd"))
    report = report_node(
        ProcessSettings(node_name="n", cpus_milli=500, labels=labels), tmp_path, None, NodeUsageReader()
    )
    assert report.labels == (("arch", "odd"), ("os", "linux"), ("zone", "basement"))
    assert (report.name, report.cpus_milli, report.faults) == ("n", 500, ())
