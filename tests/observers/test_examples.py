"""The dashboard and the alerts in examples/ use metrics that are really exported, and right queries."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import headgate
from observers.eventful import eventful_run, losing_a_store

EXAMPLES = Path(__file__).parents[2] / "examples"
ALERTS = (EXAMPLES / "alerts.yml").read_text()
DASHBOARD = json.loads((EXAMPLES / "grafana.json").read_text())
PANELS = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in DASHBOARD["panels"]}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="install Debian's prometheus: it has promtool"
)


def promtool(*command):
    done = subprocess.run(["promtool", *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exported():
    """The labels of each sample that is exported, by its name."""
    registry = CollectorRegistry()
    observer = headgate.observers.prometheus(registry)
    _, api = eventful_run(observer, lambda: None)
    losing_a_store(observer, lambda: observer.lost, lambda: all(observer.up.values()))
    labels = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    assert api.waiting == 0
    return labels


def used_in(query):
    return re.findall(r"\bheadgate_\w+", query)


def test_every_metric_of_the_alerts_is_exported(exported):
    queries = re.findall(r"expr: (.*?)\n        (?:for|labels)", ALERTS, re.DOTALL)
    assert len(queries) == 3
    for query in queries:
        assert used_in(query)
        assert set(used_in(query)) <= exported.keys()
        for labels in re.findall(r"by \(([^)]*)\)", query):
            assert set(labels.split(", ")) <= exported[used_in(query)[0]]


@pytest.mark.parametrize("title", PANELS)
def test_every_metric_and_label_of_the_dashboard_is_exported(exported, title):
    for query in PANELS[title]:
        assert used_in(query)
        for name in used_in(query):
            assert name in exported
        for labels in re.findall(r"by \(([^)]*)\)", query):
            assert set(labels.split(", ")) <= exported[used_in(query)[0]]


def test_the_dashboard_shows_every_metric(exported):
    shown = {name for queries in PANELS.values() for query in queries for name in used_in(query)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported}
    assert families == {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}


@needs_promtool
def test_promtool_accepts_the_alerts():
    assert "3 rules found" in promtool("check", "rules", EXAMPLES / "alerts.yml")


@needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then():
    assert "SUCCESS" in promtool("test", "rules", EXAMPLES / "alerts_test.yml")


@needs_promtool
def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path):
    queries = [query for queries in PANELS.values() for query in queries]
    plain = [query.replace("$__rate_interval", "5m").replace("$gate", ".*") for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    assert f"{len(queries)} rules found" in promtool("check", "rules", path)
