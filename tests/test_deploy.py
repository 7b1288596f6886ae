"""The files that operators copy and read, docs/deploy and docs/operating.md, match the code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import switchagg
import worker_lib
from switchagg.cli.main import COMMANDS
from switchagg.control.embedded import EmbeddedController
from switchagg.control.switch_specs import read_configuration
from tests.worker_lib.harness import together

DOCS = Path(__file__).parent.parent / "docs"
RULES = DOCS / "deploy" / "switchagg.rules.yml"
UNIT = DOCS / "deploy" / "switchagg-controller.service"
GUIDE = (DOCS / "operating.md").read_text()
# Suffixes that Prometheus' clients add to every metric of a kind.
_ADDED = re.compile(r"_(created|bucket|sum|count)$")


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    with (
        EmbeddedController() as controller,
        urllib.request.urlopen(f"{controller.url}/metrics", timeout=20) as answer,
    ):
        text = answer.read().decode()
    return {_ADDED.sub("", name) for name in re.findall(r"^# TYPE (\w+) ", text, re.M)}


def test_every_metric_is_explained_and_has_an_alert(metrics: set[str]) -> None:
    ours = {name for name in metrics if name.startswith("switchagg_")}
    assert len(ours) > 15
    assert ours == set(re.findall(r"`(switchagg_\w+)`", GUIDE))
    alerts = RULES.read_text()
    used = {_ADDED.sub("", name) for name in re.findall(r"\b(?:switchagg|process)_\w+", alerts)}
    assert ours <= used
    assert used <= metrics


def test_the_dashboard_shows_what_is_exported() -> None:
    """Every series of the dashboard, with its labels, is there while a job runs."""
    dashboard = json.loads((DOCS / "deploy" / "grafana.json").read_text())
    panels = dashboard["panels"]
    series = [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    assert len(series) > 15
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24, "Grafana has 24 columns"
    labels: dict[str, set[str]] = {}
    wanted = {name for expr, _ in series for name in re.findall(r"switchagg_\w+", expr)}

    def train(session: worker_lib.Session) -> None:
        deadline = time.monotonic() + 60
        while True:  # all ranks together; rank 0 looks
            session.allreduce(np.ones(100_000, np.float32))
            if session.rank == 0:
                with urllib.request.urlopen(f"{controller.url}/metrics", timeout=20) as answer:
                    text = answer.read().decode()
                for family in text_string_to_metric_families(text):
                    for sample in family.samples:
                        labels.setdefault(sample.name, set()).update(sample.labels)
            if session.broadcast_object(wanted <= set(labels) or time.monotonic() > deadline):
                return
            time.sleep(0.1)

    with EmbeddedController() as controller:
        together(controller.url, 2, train)
    assert wanted <= set(labels), wanted - set(labels)
    for expr, legend in series:
        own = set.union(*(labels[name] for name in re.findall(r"switchagg_\w+", expr)))
        used = {each.strip() for group in re.findall(r"by \(([^)]*)\)", expr) for each in group.split(",")}
        used |= set(re.findall(r"(\w+)=", expr)) | set(re.findall(r"{{(\w+)}}", legend))
        assert used <= own, (expr, legend, used - own)


def test_the_version_is_one() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == switchagg.__version__ == worker_lib.__version__


def test_every_alert_is_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert len(alerts) > 15
    assert set(alerts) == set(re.findall(r"`(Switchagg\w+)`", GUIDE))


def test_alerts_are_rules() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not here")
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_configuration_is_one() -> None:
    configuration = read_configuration(DOCS / "deploy" / "controller.toml")
    assert configuration.settings.listen == "10.0.0.1:8443"
    assert set(configuration.switches) == {"soft", "rack1"}


def test_commands_in_the_guide_are_commands() -> None:
    text = GUIDE.replace("\\\n", " ").replace("sudo -E -u switchagg ", "")
    lines = re.findall(r"^(switchagg .*?)(?:\s+#.*)?$", text, re.M)
    lines += re.findall(r"`(switchagg [^`]*)`", GUIDE)
    assert len(lines) > 20
    for line in lines:
        words = shlex.split(line)
        if not words[1].startswith("--"):
            assert words[1] in COMMANDS, line
