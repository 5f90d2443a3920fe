"""The numbers of graphs and what-if: equal to those of the commands and of the API's lists."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import count
from math import exp

import pytest
from support.cli import spamnb
from support.console import SAMPLE, Api, console, token, trained_home
from support.daemon import send
from support.sink import Sink
from support.waiting import until

from spamnb.model.costs import Costs, thresholds
from spamnb.operations.figures import PERIODS, growth_in

JUNK = next(one.probability for one in thresholds(Costs()) if one.decision == "junk")


class Rig:
    """A daemon that has judged some mail, and a client with all rights."""

    def __init__(self, folder, daemon, address):
        self.daemon = daemon
        self.home, self.config = folder / "home", folder / "spamnb.toml"
        self.address, self.numbers = address, count()
        for number in range(12):
            text = "meeting agenda notes" if number % 3 else "cheap pills viagra offer buy now"
            send(daemon.port(), f"{text} {number}", f"about {number}")
        self.rows = self.api.found(12)

    @property
    def api(self):
        """A client with a new token, which has sent no request yet: rates are by token."""
        name = f"fresh {next(self.numbers)}"
        return Api(self.address, token(self.home, name, "admin", "read", "teach"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder, sink = tmp_path_factory.mktemp("figures"), Sink()
    trained_home(folder)
    with console(folder, listener=f'upstream = "{sink.address}"') as (daemon, address):
        yield Rig(folder, daemon, address)
    sink.close()


def test_counts_are_those_of_the_command(rig):
    """`spamnb history` has the same decisions; under the same costs nothing changes."""
    found = rig.api.post("/whatif", {"junk_from": JUNK}).body
    listed = spamnb(rig.home, "--config", str(rig.config), "history", "--json", "--limit", 0).json
    counts = {one["old"]: one["messages"] for one in found["counts"]}
    assert counts == Counter(one["decision"] for one in listed)
    assert found["messages"] == len(listed)
    assert all(one["old"] == one["new"] for one in found["counts"])
    assert found["changed"] == []
    assert found["new_thresholds"]["junk"] == pytest.approx(JUNK)


def test_known_and_expected_are_those_of_the_changed_messages(rig):
    """With ham as cheap as spam all that is likely spam is junk; the sums are over this mail."""
    costs = {"junk": [0.5, 0.05], "reject": [1000, 0]}
    found = rig.api.post("/whatif", {"costs": costs, "limit": 200}).body
    moved = [one for one in found["changed"] if one["new"] == "junk"]
    assert found["newly_junk"]["messages"] == len(moved)
    expected = sum(1 - one["probability"] for one in moved)
    assert found["newly_junk"]["expected_wrong"] == pytest.approx(expected)
    assert found["newly_junk"]["known"] == 0
    before = {one["signature"]: one for one in rig.rows}
    assert all(before[one["signature"]]["decision"] == one["old"] for one in moved)
    assert found["at_most"]["share"] is None


def test_a_correction_is_known(rig):
    """A message that a person taught counts as known, and as judged before it was taught."""
    row = rig.rows[0]
    assert rig.api.post("/teach", {"label": "ham", "ref": row["signature"]}).status == 200
    found = rig.api.post("/whatif", {"junk_from": 0.9}).body
    assert found["at_most"]["ham"] == 1
    assert sum(one["messages"] for one in found["reliability"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"junk_from": 0},
        {"junk_from": 1},
        {"junk_from": "x"},
        {"junk_from": True},
        {"junk_from": 0.5, "costs": {}},
        {"costs": {"junk": [1]}},
        {"costs": {"junk": [1, "x"]}},
        {"costs": {"junk": [-1, 0]}},
        {"costs": {"other": [1, 1]}},
        {"costs": []},
        {"junk_from": 0.9, "messages": 0},
    ],
)
def test_a_request_that_is_not_valid_is_refused(rig, body):
    """The reply names the parameter."""
    reply = rig.api.post("/whatif", body)
    assert reply.status == 400, reply


@pytest.mark.parametrize("period", PERIODS)
def test_a_chart_has_a_value_for_each_place(rig, period):
    """Every period; places are times, or log-odds."""
    found = rig.api.get("/graphs", period=period).body
    assert found["messages"] == 12
    for chart in found["charts"]:
        for one in chart["series"]:
            assert len(one["values"]) == len(chart["places"])
    by_name = {chart["name"]: chart for chart in found["charts"]}
    assert len(by_name["volume"]["places"]) == PERIODS[period].length
    spread = by_name["log_odds"]["series"]
    total = sum(value for one in spread if one["kind"] == "bar" for value in one["values"])
    assert total == pytest.approx(100)


def test_steps_add_up_and_end_with_the_present():
    """Growth is counted in the step that it belongs to, what is older in none."""
    period = PERIODS["day"]
    starts = period.starts(1_767_270_000)
    assert len(starts) == 24
    assert starts[-1] <= 1_767_270_000 < starts[-1] + period.seconds
    rows = [(starts[0] - 900, {"scanned": 9}), (starts[0] + 900, {"scanned": 1}),
            (starts[0] + 2700, {"scanned": 2}), (starts[-1], {"scanned": 4})]  # fmt: skip
    found = growth_in(rows, starts, period.seconds)
    assert (found[0]["scanned"], found[-1]["scanned"]) == (3, 4)
    assert sum(one["scanned"] for one in found) == 7


@pytest.fixture(scope="module")
def taught(rig):
    """Twelve messages that were judged, each otherwise, and then taught as ham."""
    words = "meeting cheap agenda pills notes viagra hello offer the buy now free"
    api = rig.api
    for number in range(10):
        spam = f"Subject: more\n\ncheap pills viagra offer buy now free {number}\n".encode()
        assert api.post("/teach", spam, label="spam").status == 200
    for number in range(12):
        send(rig.daemon.port(), " ".join(words.split()[: number + 1]), f"more {number}")
    rows, api = rig.api.found(12, q="more"), rig.api
    for row in rows:
        assert api.post("/teach", {"label": "ham", "ref": row["signature"]}).status == 200
    return rows


def test_the_numbers_are_those_of_the_commands(rig, taught):
    """`status`, `stats` and `bisect` say the same as the API, and so as the pages."""
    api, command = rig.api, (rig.home, "--config", str(rig.config))
    told, shown = spamnb(*command, "status", "--json").json[0], api.get("/status").body
    changing = {"serving", "up_s", "processes", "counters", "disk", "clock"}
    assert {one: told[one] for one in told.keys() - changing} == {
        one: shown[one] for one in shown.keys() - changing
    }

    stats = spamnb(*command, "stats", "--json").json[0]
    assert stats["events"] == api.get("/timemachine").body["last_event"]
    assert stats["history"] == api.get("/graphs").body["messages"]
    found = api.post("/whatif", {"junk_from": JUNK, "one_in": 2}).body
    assert stats["thresholds"] == found["old_thresholds"]

    signature = taught[0]["signature"]
    listed = spamnb(*command, "bisect", signature, "--limit", 20, "--json").json[0]
    influence = api.get(f"/verdicts/{signature}/influence", limit=20).body
    assert influence["log_odds"] == listed["log_odds"]
    assert influence["shares"] == listed["shares"]


def test_the_bound_on_lost_ham_is_that_of_evaluate(rig, taught, tmp_path):
    """As many ham, as many of them above the threshold: the same bound at 95 %."""
    for label in ("ham", "spam"):
        (tmp_path / label).mkdir()
        for path in sorted((SAMPLE / label).iterdir())[: len(taught)]:
            shutil.copy(path, tmp_path / label)
    mail = [tmp_path / label for label in ("ham", "spam")]
    told = spamnb(rig.home, "evaluate", *mail, "--one-in", 2, "--json", tmp_path / "told")
    assert told.code == 0, told
    bound = json.loads((tmp_path / "told").read_text())["loss_bound"]
    odds = sorted((row["log_odds"] for row in taught), reverse=True)
    above = bound["ham_above"]
    line = (odds[above - 1] + odds[above]) / 2
    assert odds[above - 1] > line > 1
    costs = {"junk": [0.4 + 0.55 * exp(line), 0.05], "reject": [1e12, 0]}
    asked = {"costs": costs, "one_in": 2, "messages": len(taught)}
    found = rig.api.post("/whatif", asked).body["at_most"]
    assert (found["ham"], found["filed"]) == (bound["ham"], above)
    assert found["ham_needed"] == bound["ham_needed"]
    assert 100 * found["share"] == pytest.approx(bound["at_worst_percent"])


def junk_shown(rig):
    """The threshold of junk by `spamnb config show`, which reads the settings and the home."""
    shown = spamnb(rig.home, "--config", str(rig.config), "config", "show", "--json").json[0]
    costs = replace(Costs(), **{name: tuple(shown[f"costs.{name}"]) for name in ("junk", "reject")})
    return next(one.probability for one in thresholds(costs) if one.decision == "junk")


def test_a_threshold_is_put_in_force_and_taken_back(rig):
    """What was tried is what is decided then; the log says who, from what and to what."""
    api = rig.api
    tried = api.post("/whatif", {"junk_from": 0.6}).body
    done = api.post("/costs", {"junk_from": 0.6, "expect": JUNK})
    assert (done.status, done.body["after"]) == (200, tried["new_thresholds"])
    assert done.body["before"] == tried["old_thresholds"]
    logged = rig.daemon.wait_for("costs changed")
    assert (logged["do"], logged["before"], logged["after"]) == (
        "choose", JUNK, pytest.approx(0.6),
    )  # fmt: skip
    assert logged["user"].startswith("token fresh")
    until(lambda: api.get("/costs").body["thresholds"] == tried["new_thresholds"], "the reload")
    assert junk_shown(rig) == pytest.approx(0.6)
    stored = api.get("/costs").body["stored"]
    assert (stored["by"], stored["before"]) == (logged["user"], tried["old_thresholds"])
    again = api.post("/whatif", {"junk_from": 0.6}).body
    assert again["counts"] == [one | {"old": one["new"]} for one in again["counts"]]
    assert api.post("/costs", {"junk_from": 0.7, "expect": JUNK}).status == 409
    assert api.ask("DELETE", "/costs", at=stored["at"]).body["after"] == tried["old_thresholds"]
    until(lambda: api.get("/costs").body["thresholds"] == tried["old_thresholds"], "the reload")
    assert api.ask("DELETE", "/costs", at=stored["at"]).status == 404
    assert junk_shown(rig) == pytest.approx(JUNK)


def test_costs_in_the_settings_win(rig):
    """The reply names file and line; nothing is written."""
    before = rig.config.read_text()
    line = before.count("\n") + 3
    rig.config.write_text(f"{before}\n[costs]\njunk = [50, 0.05]\n")
    api = rig.api
    try:
        assert api.post("/reload", {}).status == 200
        where = f"{rig.config}, line {line}"
        until(lambda: api.get("/costs").body["set_at"] == where, "the reload")
        now = api.get("/costs").body["thresholds"]["junk"]

        def refused():
            # Each process reads the settings for itself: until the learner has, `expect` fails.
            reply = api.post("/costs", {"junk_from": 0.6, "expect": now})
            assert reply.status == 409
            return reply.title == f"costs are set at {where}"

        until(refused, "the learner's reload")
        assert api.get("/costs").body["stored"] is None
    finally:
        rig.config.write_text(before)
        api.post("/reload", {})
    until(lambda: not api.get("/costs").body["set_at"], "the reload")


def test_users_whose_labels_are_contradicted(rig):
    """By another user of the same message, and by the model as `spamnb doubt` counts it."""
    users = {name: Api(rig.address, token(rig.home, name, "teach")) for name in ("eve", "carol")}
    good = [one.read_bytes() + b"\nnew\n" for one in sorted((SAMPLE / "ham").iterdir())[:4]]
    for raw in good:
        assert users["eve"].post("/teach", raw, label="spam").status == 200
    assert users["carol"].post("/teach", good[0], label="ham").status == 200
    found = rig.api.get("/journal/users").body["teachers"]
    by_user = {one["user"]: one for one in found}
    eve, carol = by_user["token eve"], by_user["token carol"]
    assert (eve["labels"], eve["by_others"], eve["tested"]) == (4, 1, 3)
    assert (carol["labels"], carol["by_others"], carol["tested"]) == (1, 1, 1)
    doubted = spamnb(rig.home, "--config", str(rig.config), "doubt", "--limit", 0, "--json").json
    counts = Counter(one["user"] for one in doubted)
    assert {name: one["by_model"] for name, one in by_user.items()} == {
        name: counts[name] for name in by_user
    }
    assert counts["token eve"] > 0
    order = [one["by_others"] + one["by_model"] for one in found]
    assert order == sorted(order, reverse=True)
