"""Status: figures of the training, and warnings."""

import pytest

from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.score_watch import store_trained_scores
from spamnb.engine.values import Learn, Source
from spamnb.model.verdict import BINS
from spamnb.operations.status import (
    gauges,
    model_facts,
    public,
    quantile,
    quarantine_size,
    warnings,
)
from spamnb.telemetry import BOUNDS_S, Meters, as_dict, now_us, prometheus

DAY_US = 86_400_000_000


@pytest.fixture
def model(tmp_path):
    with Filter.open(tmp_path / "m", create=True, recipe=new_recipe()) as model:
        yield model


def taught(model, labels, *, days_ago=0.0):
    """Learn a message for each letter: h or s."""
    index = {"h": model.label("ham"), "s": model.label("spam")}
    when = now_us()
    with model.store.read() as view:
        start = view.totals().last_seq
    model.teach(
        [
            Learn(model.example(f"Subject: {start + n}\n\nx{start + n}\n".encode()), index[request],
                  Source(), when - int(days_ago * DAY_US))
            for n, request in enumerate(labels)
        ]
    )  # fmt: skip


def warned(model, tmp_path, **more):
    return warnings({"model": model_facts(tmp_path / "m", model)} | more)


def test_a_model_in_use_gives_no_warning(model, tmp_path):
    """A model with recent training of both labels has no warnings."""
    taught(model, "hs" * 100)
    facts = model_facts(tmp_path / "m", model)
    assert (facts["messages"], facts["lately"]) == (
        {"ham": 100, "spam": 100}, {"ham": 100, "spam": 100},
    )  # fmt: skip
    assert all(now_us() - last < DAY_US for last in facts["learnt"].values())
    assert warned(model, tmp_path) == []


def test_a_jump_of_the_threshold_is_reported(model, tmp_path):
    """A change by a nat or more is a warning for three days; smaller and first ones are none."""
    taught(model, "hs" * 100)
    none = (0,) * BINS
    low, near, high = (tuple(10 * (step < end) for step in range(BINS)) for end in (8, 9, 44))
    for ham, when, said in (
        (low, 0, []), (near, 0, []), (high, -4 * DAY_US, []), (low, -4 * DAY_US, []),
        (high, 0, ["the junk threshold went from 2.3"]),
    ):  # fmt: skip
        assert store_trained_scores(model, ham, none, "root", now_us() + when)
        found = [line for line in warned(model, tmp_path) if "threshold" in line]
        assert [line[: len(text)] for line, text in zip(found, said, strict=True)] == said


def test_a_side_that_was_never_taught_is_reported(model, tmp_path):
    """A label without training gives a warning."""
    assert len(warned(model, tmp_path)) == 2
    taught(model, "h")
    assert warned(model, tmp_path) == ["no spam was ever learnt"]


def test_training_that_stopped_is_reported(model, tmp_path):
    """The warning names the label and the days since its last training."""
    taught(model, "hs", days_ago=31)
    taught(model, "s")
    assert warned(model, tmp_path) == ["the last ham was learnt 31 days ago"]


def test_one_side_alone_is_reported(model, tmp_path):
    """The labels of the last 200 trainings are compared with those of the model."""
    taught(model, "hs" * 300, days_ago=1)
    taught(model, "s" * 200)
    found = warned(model, tmp_path)
    assert len(found) == 1
    assert "were spam" in found[0]


def test_users_labels_without_any_training_give_a_warning(model, tmp_path):
    """Feedback without any learning gives a warning."""
    taught(model, "hs" * 5)
    meters = Meters()
    for _ in range(25):
        meters.count("feedback_refused")
    found = warned(model, tmp_path, counters=as_dict(meters))
    assert found == ["25 labels from users were received, and none was learnt: see the log"]
    meters.count("learned_ham")
    assert warned(model, tmp_path, counters=as_dict(meters)) == []


def test_what_hinders_is_reported(model, tmp_path):
    """An unusable model, bypass, reports in review and set-aside files give warnings."""
    taught(model, "hs")
    facts = {"fault": "gone", "bypass": True, "review": 3, "spool": {"set_aside": 2}}
    assert len(warned(model, tmp_path, **facts)) == 4


def test_quantiles_come_from_the_buckets():
    """A quantile is the bound of its bucket; None without values; infinite above the last bound."""
    meters = Meters()
    assert quantile(as_dict(meters)["learn_seconds"], 0.5) is None
    for _ in range(98):
        meters.observe("learn_seconds", 0.0015)
    meters.observe("learn_seconds", 3)
    meters.observe("learn_seconds", 1000)
    found = as_dict(meters)["learn_seconds"]
    assert (quantile(found, 0.5), quantile(found, 0.99)) == (0.002, 5.0)
    assert quantile(found, 1.0) == float("inf")
    assert BOUNDS_S[0] < 0.002


def test_gauges_name_each_label_once():
    """Each name has one TYPE line, and label values are escaped."""
    model = {"messages": {'a"b': 1, "c\\d": 2}, "learnt": {'a"b': 1_000_000, "c\\d": None}}
    text = prometheus(Meters(), gauges({"model": model, "up_s": 5.0}))
    assert 'spamnb_model_messages{label="a\\"b"} 1\n' in text
    assert 'spamnb_model_messages{label="c\\\\d"} 2\n' in text
    assert text.count("# TYPE spamnb_model_messages gauge\n") == 1
    assert 'last_learnt_timestamp_seconds{label="a\\"b"} 1.0\n' in text


def test_the_size_of_a_folder(tmp_path):
    """Messages are counted without metadata files, bytes with them; a missing folder is empty."""
    (tmp_path / "a.eml").write_bytes(b"12345")
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / ".part").write_bytes(b"x")
    assert quarantine_size(tmp_path) == {"messages": 1, "bytes": 7}
    (tmp_path / "b.eml").write_bytes(b"12345")
    (tmp_path / "b.deleted").write_bytes(b"{}")
    assert quarantine_size(tmp_path) == {"messages": 1, "bytes": 14}
    assert quarantine_size(tmp_path / "none") == {"messages": 0, "bytes": 0}


def test_other_users_see_the_reason_without_paths():
    """Unprivileged users see fault and warnings without paths."""
    facts = {
        "home": "/srv/x/home",
        "fault": "/srv/x/home: Permission denied",
        "warnings": ["the model cannot be used: /srv/x/home/history: Permission denied",
                     "the home /srv/x/home cannot be read: Permission denied",
                     "/var/spool/other: Permission denied", "3 reports wait",
                     "'/var/a b/c d' is accessible to other users", "the list /etc/x is empty"],
        "unreadable": "/srv/x/home",
        "review": 3,
    }  # fmt: skip
    shown = public(facts)
    assert "srv" not in str(shown)
    assert "/var/spool" not in str(shown)
    assert shown["fault"] == "the home: Permission denied"
    assert shown["warnings"][0].startswith("the model cannot be used: the home/history: Permission")
    assert shown["warnings"][1] == "the home cannot be read: Permission denied"
    assert shown["warnings"][2:] == [
        "[path]: Permission denied",
        "3 reports wait",
        "[path] [path] d' is accessible to other users",
        "the list [path] is empty",
    ]
    assert "home" not in shown
