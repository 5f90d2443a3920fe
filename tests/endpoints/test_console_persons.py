"""The HTTP API with persons: verdicts for a person, and of a message for its recipient."""

import json
import shutil
import smtplib
import tempfile
from pathlib import Path

import pytest
from support.cli import SAMPLE, spamnb
from support.console import KEEP_ALL, Api, console, token, trained_home
from support.sink import Sink
from support.waiting import LIMIT_S, until

PERSONS = """
[local]
domains = ["example.org"]
[persons]
enabled = true
[person.carol]
junk_costs = [1e9, 0.05]
reject_costs = [1e9, 0]
"""
RAW = (SAMPLE / "spam" / "0119.eml").read_bytes()


@pytest.fixture(scope="module")
def served():
    folder = Path(tempfile.mkdtemp(prefix="spamnb-"))
    trained_home(folder)
    sink = Sink()
    listener = f'upstream = "{sink.address}"'
    with console(folder, listener=listener, more=KEEP_ALL + PERSONS) as (daemon, address):
        yield folder / "home", daemon, address
    sink.close()
    shutil.rmtree(folder)


def api(served, name, *scopes, user=""):
    home, _, address = served
    return Api(address, token(home, name, *scopes, user=user))


def test_scores_are_those_of_a_person(served):
    """`person` names an address or a login; a caller of one user can name this user alone."""
    root = api(served, "root", "score", "read", "teach")
    ann = api(served, "ann", "score", "read", "teach", user="ann@example.org")
    costs = root.post("/score", RAW, person="carol").body
    assert (costs["decision"], costs["costs"]["of"]) == ("unsure", "person.carol")
    taught = ann.post("/teach", {"label": "ham", "ref": deliver(served, root, "ann")["signature"]})
    assert (taught.status, taught.body["state"]) == (200, "learnt")
    mine = root.post("/score", RAW, person="ann@example.org", clues=1000).body
    assert mine["label"] == "ham"
    shared = root.post("/score", RAW).body["log_odds"]
    assert root.post("/score", RAW, person="bob").body["log_odds"] == shared > mine["log_odds"]
    assert ann.post("/score", RAW, person="ann").body["log_odds"] == mine["log_odds"]
    assert ann.post("/score", RAW, person="bob").status == 403
    assert root.post("/score", RAW, person="x@elsewhere.example").status == 400
    told = ann.post("/explain", RAW, person="ann", without=5).body
    total = told["bias"] + sum(clue["nats"] for clue in told["clues"])
    assert total == pytest.approx(told["log_odds"]) == pytest.approx(mine["log_odds"])
    assert [one["token"] for one in told["without"]] == [one["token"] for one in told["clues"][:5]]
    assert all(one["log_odds"] != told["log_odds"] for one in told["without"])


def deliver(served, reader, name):
    """Send a message to one person; its verdict."""
    to = f"{name}@example.org"
    with smtplib.SMTP("127.0.0.1", served[1].port(), timeout=LIMIT_S) as client:
        client.sendmail("x@example.com", [to], RAW)

    def found():
        rows = reader.get("/verdicts", to=to).body.get("verdicts", ())
        return rows[0] if rows else None

    return until(found, f"the verdict for {name}")


def test_a_verdict_now_is_that_of_its_recipient(served):
    """The reply names the person; labels of the person are the training of the message."""
    root = api(served, "again", "admin", "read", "teach")
    ann = api(served, "ann again", "read", "teach", user="ann@example.org")
    row = deliver(served, root, "dora")
    dora = api(served, "dora", "read", "teach", user="dora@example.org")
    assert dora.post("/teach", {"label": "ham", "ref": row["signature"]}).status == 200
    for reader in (root, dora):
        shown = reader.get(f"/verdicts/{row['signature']}").body
        assert (shown["now"]["label"], shown["person"]) == ("ham", "dora@example.org")
        assert shown["trained"] == "ham"
    found = root.get(f"/verdicts/{row['signature']}/influence", limit=10).body
    assert found["log_odds"] == pytest.approx(shown["now"]["log_odds"])
    own = next(one for one in found["shares"] if one["user"] == "dora@example.org")
    assert own["nats"] < 0
    assert ann.get(f"/verdicts/{row['signature']}").status == 404


def test_persons_are_in_status_and_metrics(served):
    """Status and metrics count persons, their size, and labels that the budget limits."""
    home, _, _ = served
    done = spamnb(home, "correct", "--person", "zoe", "ham", SAMPLE / "spam" / "0119.eml")
    assert done.code == 0, done.err
    facts = json.loads(spamnb(home, "status", "--json").out)
    persons = facts["model"]["persons"]
    assert persons["count"] >= 1
    assert 0 < persons["largest"] <= persons["bytes"]
    assert "persons" in spamnb(home, "status").out
    metrics = spamnb(home, "status", "--prometheus").out
    assert f"spamnb_model_persons_count {persons['count']}" in metrics
    assert "spamnb_learned_limited_total" in metrics
    assert facts["counters"]["learned_limited"] >= 0
