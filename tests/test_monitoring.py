"""The alerts and the dashboard in docs/monitoring, with the numbers of a real daemon."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.cli import HAM, SPAM
from support.cli import forked as spamnb
from support.daemon import serve

from spamnb.operations.protocol import ControlClient

PROJECT = Path(__file__).resolve().parents[1]
MONITORING = PROJECT / "docs" / "monitoring"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
NAME = re.compile(r"\bspamnb_[a-z_]+")
FOR_SOME = {"fleet_following", "fleet_lag_seconds", "fleet_waiting_seconds", "mailboxes_away"} | {
    *("webhook_waiting", "webhook_dropped")
}
"""numbers of a fleet and of webhooks, which a daemon without them does not have"""


def expressions():
    """The expressions of all panels."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_all_numbers_are_those_of_a_daemon(tmp_path):
    """A number that is renamed fails here."""
    assert spamnb(tmp_path / "home", "train", HAM, SPAM).code == 0
    with serve(tmp_path).ready() as daemon:
        with ControlClient(tmp_path / "home" / "control.sock") as caller:
            shown = caller.ask("metrics").body.decode()
        assert daemon.stop() == 0
    there = set(NAME.findall(shown))
    assert "spamnb_home_free_bytes" in there
    rules = (MONITORING / "spamnb.rules.yml").read_text()
    asked = {name for text in (rules, *expressions()) for name in NAME.findall(text)}
    assert len(asked) > 40
    assert asked - there <= {f"spamnb_{name}" for name in FOR_SOME}


def test_each_alert_is_described():
    """A person who gets an alert finds it in docs/monitoring.md."""
    rules = (MONITORING / "spamnb.rules.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    page = (PROJECT / "docs" / "monitoring.md").read_text()
    assert alerts == re.findall(r"^\| `(Spamnb\w+)`", page, re.MULTILINE)


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed")
def test_alerts_fire_when_they_must(tmp_path):
    """`promtool` runs the rules on series of numbers, and reads the dashboard's expressions."""
    for source in (MONITORING / "spamnb.rules.yml", PROJECT / "tests/suites/spamnb.rules.test.yml"):
        shutil.copy(source, tmp_path)
    rules = [
        {"record": f"board:{number}", "expr": text.replace("$__rate_interval", "5m")}
        for number, text in enumerate(expressions())
    ]
    board = {"groups": [{"name": "board", "rules": rules}]}
    (tmp_path / "board.yml").write_text(json.dumps(board))  # JSON is YAML
    for words in (
        ("check", "rules", "spamnb.rules.yml", "board.yml"),
        ("test", "rules", "spamnb.rules.test.yml"),
    ):
        done = subprocess.run(
            [PROMTOOL, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
