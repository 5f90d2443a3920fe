"""Payloads hidden by structure: what mail programs show is read, or the verdict is unsure."""

from pathlib import Path

import pytest
from support import evasions

from spamnb.engine.filter import Filter, new_recipe
from spamnb.mail.limits import PARTLY
from spamnb.mail.message import read
from spamnb.model.features import Key, extract
from spamnb.model.tokens import TokenLocation, fields

WORDS = [f"quickfox{number:02}pills" for number in range(40)]
KEY = Key(b"k" * 32)
CASES = list(evasions.every(WORDS))
SAMPLE = Path(__file__).resolve().parents[3] / "corpora" / "sample"


def ids(*found: tuple[TokenLocation, bytes, bytes]) -> set[int]:
    return set(extract(KEY, [list(found)]).ids.tolist())


PAYLOAD = ids((TokenLocation.BODY, b"", " ".join(WORDS).encode()))


FAMILIES = list(dict.fromkeys(case.name.partition("/")[0] for case in CASES))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_mail_program_shows_is_read(family: str) -> None:
    """Every valid message gives all words of its payload; an unread payload leaves a mark."""
    for case in CASES:
        if case.name.partition("/")[0] != family:
            continue
        message = read(case.raw)
        if not ids(*fields(message)) >= PAYLOAD:
            assert not case.valid, case.name
            assert PARTLY in message.oddities, case.name


def test_valid_and_broken_messages_are_many() -> None:
    """The generator makes hundreds of messages: without any, the other tests would pass."""
    valid = sum(case.valid for case in CASES)
    assert valid > 600
    assert len(CASES) - valid > 200


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that knows the words of the payload as spam."""
    with Filter.open(
        tmp_path_factory.mktemp("model"), create=True, recipe=new_recipe(), map_size=1 << 28
    ) as made:
        for number in range(30):
            ham = f"{evasions.HEAD}X-N: {number}\n\n{evasions.FILLER}{number}\n"
            spam = f"{evasions.HEAD}X-N: {number}\n\n{' '.join(WORDS)} {number}\n"
            made.learn(ham.replace("<1@", f"<h{number}@").encode(), "ham")
            made.learn(spam.replace("<1@", f"<s{number}@").encode(), "spam")
        yield made


def test_what_was_not_read_is_never_delivered(model) -> None:
    """A message with an unread payload is unsure at least, and its reason is `partly-read`."""
    unread = [case for case in CASES if not ids(*fields(read(case.raw))) >= PAYLOAD]
    assert unread
    for verdict in model.score_many([case.raw for case in unread]):
        assert verdict.decision != "deliver"
        assert verdict.reason == "partly-read"


def test_the_reason_outlives_the_message(model) -> None:
    """The verdict asked for by reference, from stored features, is as strict as the first one."""
    raw = next(case.raw for case in CASES if PARTLY in read(case.raw).oddities)
    first = model.score(raw)
    again = model.explain(first.signature)
    assert (again.decision, again.reason) == (first.decision, first.reason)
    assert again.reason == "partly-read"


def test_a_correction_to_ham_still_scores_as_ham(model) -> None:
    """The floor of the decision leaves label and probability to the model (law 9)."""
    raw = next(case.raw for case in CASES if case.name == "closed-between/html-plain")
    model.correct(raw, "ham")
    verdict = model.score(raw)
    assert (verdict.label, verdict.decision) == ("ham", "unsure")


def test_ordinary_mail_is_read_whole() -> None:
    """No message of the sample is called partly read."""
    paths = [path for path in SAMPLE.rglob("*") if path.is_file()]
    assert len(paths) > 100
    assert not [path for path in paths if PARTLY in read(path.read_bytes()).oddities]
