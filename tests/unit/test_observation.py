"""What a listener that only observes would have done, beside what users say."""

from contextlib import closing

import pytest
from support.history import NOON_2026, entry

from spamnb.engine.filter import Filter
from spamnb.operations.listings import observation
from spamnb.operations.status import observation_text

OBSERVED = {"observed": "listener.milter.observe = true"}
MAIL = b"Message-ID: <%d@x>\r\nSubject: words\r\n\r\nmessage %d\r\n"


@pytest.fixture
def model(tmp_path):
    with closing(Filter.open(tmp_path, create=True)) as made:
        yield made


def observed(model, number, decision, label=None, notes=OBSERVED):
    """Add a verdict on a message, and the label that a user gave it."""
    raw = MAIL % (number, number)
    model.history.add([
        entry(number, size=2, digest=model.example(raw).digest, decision=decision, notes=notes,
              time_us=NOON_2026 + number)
    ])  # fmt: skip
    if label:
        model.correct(raw, label)


def test_without_an_observing_listener_there_is_nothing(model):
    """Marked mail, and mail of the machine itself, are not observed by a listener."""
    assert observation(model) is None
    observed(model, 1, "junk", notes={})
    observed(model, 2, "junk", notes={"observed": 'scan.local = "observe"'})
    assert observation(model) is None


def test_filed_agreed_kept_and_missed(model):
    """Each message is counted by its decision and by the label in force."""
    for number, (decision, label) in enumerate(
        [("junk", "spam"), ("reject", None), ("junk", "ham"), ("deliver", "spam"),
         ("unsure", "ham"), ("deliver", None)], 1,
    ):  # fmt: skip
        observed(model, number, decision, label)
    observed(model, 7, "junk", "spam", notes={})
    found = observation(model)
    assert found == {
        "messages": 6, "filed": 3, "agreed": 1, "kept": 1, "missed": 1, "since_us": NOON_2026 + 1,
    }  # fmt: skip
    text = observation_text(found)
    assert text.startswith("6 messages: 3 would be filed, of which users called 1 spam")
    assert "act=file" not in text


def test_it_says_when_it_is_enough(model):
    """From twenty filed messages on, none of which a user wanted."""
    for number in range(1, 21):
        observed(model, number, "junk")
    assert "spamnb live on" in observation_text(observation(model))
    observed(model, 21, "junk", "ham")
    assert "act=file" not in observation_text(observation(model))
