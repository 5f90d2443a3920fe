"""Users whose labels changed many verdicts on the mail of others are named; one act undoes them."""

import json
import os
from dataclasses import replace
from random import Random

import pytest
from support.cli import spamnb
from support.console import Api, console, token
from support.receiver import Receiver, write_secret

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.values import Learn, Source
from spamnb.maintenance.attribution import LEAST, influential
from spamnb.operations.status import public, warnings
from spamnb.records.verdicts import HistoryEntry
from spamnb.telemetry import now_us

HAM, SPAM = 0, 1
RECIPE = replace(new_recipe(), key=bytes(range(32)))
BOB = "bob@example.org"
WORDS = [[f"{name}{n}" for n in range(60)] for name in ("minutes", "pills")]
HOOKS = """
[webhook.chat]
url = "{url}"
secret_file = "{secret}"
events = ["warning.raised", "warning.cleared"]
"""


def mail(name, kind, words=12):
    text = " ".join(Random(name).sample(WORDS[kind], words))
    return f"From: a@x.test\nMessage-ID: <{name}@x.test>\n\n{text}\n".encode()


def mixed(number):
    """Mail of others with words of both kinds, some of it near the threshold."""
    dice = Random(number)
    words = [*dice.sample(WORDS[HAM], 10 - number % 6), *dice.sample(WORDS[SPAM], 2 + number % 6)]
    text = " ".join(words)
    return f"From: b@x.test\nMessage-ID: <h{number}@x.test>\n\n{text}\n".encode()


def delivered(model, raw):
    """Score a message to Bob as the relay does."""
    verdict, ids = model.score(raw, remember=False), model.example(raw).ids
    entry = HistoryEntry(
        now_us(), os.urandom(16), verdict.digest, verdict.message_id, verdict.label,
        verdict.probability, verdict.log_odds, verdict.decision, ids, notes={"to": BOB},
    )  # fmt: skip
    model.history.add([entry])


def user(model, name):
    return Source(name, "imap", immediate=True, owner=model.owner(name))


def teach(model, raw, label, source):
    model.teach([Learn(model.example(raw), label, source, now_us(), again=True)])


@pytest.fixture
def home(tmp_path):
    """A young model of others, and its verdicts on mail that was not taught."""
    with Filter.open(tmp_path / "home", create=True, recipe=RECIPE) as model:
        for n in range(20):
            teach(model, mail(f"o{n}", n % 2, 30), n % 2, Source("root", "train"))
        for n in range(100):
            delivered(model, mixed(n))
    return tmp_path / "home"


@pytest.fixture
def model(home):
    with Filter.open(home) as model:
        yield model


def attack(model, users, labels):
    """Label ham of others as spam, by several users in turn."""
    for n in range(labels):
        teach(model, mail(f"m{n}", HAM, 50), SPAM, user(model, f"mallory{n % users}"))


def verdicts(model):
    return [model.score(mixed(n), remember=False).decision for n in range(100)]


def test_the_number_is_that_of_the_verdicts_without_the_labels(model):
    """What is reported is what the verdicts would be if the user had labelled nothing."""
    before = verdicts(model)
    attack(model, 1, 30)
    changed = sum(a != b for a, b in zip(before, verdicts(model), strict=True))
    assert changed >= LEAST
    (found,) = influential(model, now_us())
    assert found == {"users": ["mallory0"], "labels": 30, "changed": changed, "compared": 100}


def test_many_accounts_are_named_together(model):
    """Accounts with one label each, of which each one alone changes too little, are one group."""
    attack(model, 20, 20)
    found = influential(model, now_us())
    assert {name for one in found for name in one["users"]} >= {"mallory1", "mallory5"}


def test_mail_to_the_user_does_not_count(model):
    """Who changes the verdicts on the own mail alone is not named."""
    for n in range(30):
        teach(model, mail(f"m{n}", HAM, 50), SPAM, user(model, BOB.upper()))
    assert influential(model, now_us()) == []


def test_labels_that_the_model_agrees_with_are_no_alarm(model):
    """Honest users are not named, and neither are administrators."""
    for n in range(30):
        teach(model, mail(f"m{n}", n % 2), n % 2, user(model, f"ann{n % 3}"))
        teach(model, mail(f"r{n}", HAM, 50), SPAM, Source("root", immediate=True))
    assert influential(model, now_us()) == []


def test_names_are_for_administrators(model):
    """Users of the machine that are no administrators do not see who labelled what."""
    attack(model, 1, 30)
    facts = {"home": "/h", "fault": "", "model": None}
    facts["warnings"] = warnings(facts | {"model": None})
    seen = {"influential": influential(model, now_us()), "messages": {}, "lately": {}}
    seen |= {"store_bytes": 0, "store_limit_bytes": 0, "learnt": {}}
    seen["threshold"] = {"past": []}
    facts |= {"model": seen, "warnings": warnings({"model": seen})}
    assert "mallory0" in str(facts["warnings"])
    assert "mallory0" not in str(public(facts))


def test_status_page_and_webhook_name_them_and_undo_takes_them_back(home, tmp_path):
    """The warning has the command; after it, the verdicts are as before and the warning is gone."""
    with Filter.open(home) as model:
        before = verdicts(model)
        attack(model, 1, 30)
    with Receiver() as receiver:
        hooks = HOOKS.format(url=receiver.url, secret=write_secret(tmp_path))
        with console(tmp_path, more=hooks) as (_, address):
            raised = receiver.wait_for("warning.raised").body["data"]["text"]
            (warning,) = warned(home)
            assert warning == raised
            page = Api(address, token(home, "all", "admin")).ask("GET", "/api/v1/status")
            assert warning in page.body["warnings"]
            command = warning.split("`spamnb ")[1].split("`")[0].split()
            assert command == ["undo", "--user", "mallory0", "--since", "30d"]
            assert spamnb(home, *command, "--yes").out.startswith("30 events undone")
            assert receiver.wait_for("warning.cleared").body["data"]["text"] == raised
            assert warned(home) == []
    with Filter.open(home) as model:
        assert verdicts(model) == before


def warned(home):
    facts = json.loads(spamnb(home, "status", "--json").out)
    return [one for one in facts["warnings"] if "verdicts on mail of others" in one]
