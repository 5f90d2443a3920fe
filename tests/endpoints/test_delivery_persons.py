"""The delivery agent with persons: one copy for each recipient, with the recipient's verdict."""

import email
import shutil

import pytest
from support.cli import SAMPLE, spamnb
from support.delivery_agent import files, running_agent
from test_delivery_delivery import block, send

from spamnb.engine.filter import Filter
from spamnb.engine.values import Source
from spamnb.mail.message import read
from spamnb.policy.actions import PersonNames
from spamnb.policy.headers import add_to_message, scanned_fields, unscanned_fields
from spamnb.policy.senders import ListOwner, SenderList
from spamnb.scan.judge import MOST_BYTES, ModelSession, PersonalCopies, SessionConfig
from spamnb.telemetry import silent

DOMAINS = frozenset({"x.example"})
NAMES = PersonNames("+", DOMAINS, DOMAINS)
RAW = (SAMPLE / "spam" / "0119.eml").read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
LABELS = {"bob": "ham", "carol": "ham", "dora": "spam"}
EVERY = [b"bob@x.example", b"carol@x.example", b"dora@x.example", b"eve@x.example"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A trained model; bob and carol want a message that dora does not want."""
    home = tmp_path_factory.mktemp("persons") / "home"
    assert spamnb(home, "train", SAMPLE / "ham", SAMPLE / "spam").code == 0
    with Filter.open(home) as model:
        for name, label in LABELS.items():
            source = Source(name, person=model.person(name))
            assert model.correct(RAW, label, source=source).error is None
    return home


@pytest.fixture
def copies(home):
    made = PersonalCopies(SessionConfig(home, persons=NAMES), silent)
    yield made
    made.apply_settings(SessionConfig(home, persons=NAMES))  # it closes the model


@pytest.fixture
def scanned(home):
    """The message as the relay sends it, with the shared verdict and a signature."""
    session = ModelSession(SessionConfig(home, persons=NAMES))
    (found,) = session.scan([RAW], [{"to": "bob@x.example eve@x.example"}])
    session.close()
    assert found.signature
    return add_to_message(RAW, scanned_fields(found, 5.0))


def headers(mail, name, folder=""):
    (path,) = files(mail / name / "Maildir" / folder) if folder else files(mail / name)
    assert (".Junk" in path.parts) == bool(folder)
    return email.message_from_bytes(path.read_bytes())


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_each_recipient_has_their_own_verdict_and_folder(tmp_path, copies, scanned, protocol):
    """One transaction: the copies differ in verdict and folder, and in nothing else."""
    hello = b"LHLO mx" if protocol == "lmtp" else b"EHLO mx"
    with running_agent(protocol, copies=copies, root=str(tmp_path)) as agent:
        replies = send(agent, *EVERY, message=scanned, hello=hello)
    assert replies == [b"250 2.0.0"] * (4 if protocol == "lmtp" else 1)
    assert agent.logs[0]["folder"] == "both"
    bob, dora = headers(tmp_path, "bob"), headers(tmp_path, "dora", ".Junk")
    assert (bob["X-Spam-Flag"], dora["X-Spam-Flag"]) == ("NO", "YES")
    assert bob["X-Spamnb-Verdict"].startswith("deliver; label=ham")
    assert [len(one.get_all("X-Spamnb-Verdict")) for one in (bob, dora)] == [1, 1]
    original = email.message_from_bytes(scanned)
    assert bob["X-Spamnb-Signature"] == dora["X-Spamnb-Signature"]
    assert bob["X-Spamnb-Signature"] == original["X-Spamnb-Signature"]
    texts = [path.read_bytes() for path in files(tmp_path)]
    assert len(texts) == 4
    assert {read(text).digest for text in texts} == {read(RAW).digest}
    others = {name: [n for n in EVERY if n != name] for name in EVERY}
    for text in texts:
        (me,) = [name for name in EVERY if name in text]
        assert not any(other in text for other in others[me])


def test_the_recipients_fail_one_by_one_in_lmtp(tmp_path, copies, scanned):
    """A Maildir that cannot be written puts off its own recipient alone; a repeat adds one copy."""
    broken = tmp_path / "carol" / "Maildir"
    block(broken)
    with running_agent("lmtp", copies=copies, root=str(tmp_path)) as agent:
        replies = send(agent, *EVERY, message=scanned, hello=b"LHLO mx")
        assert replies == [b"250 2.0.0", b"451 4.3.0", b"250 2.0.0", b"250 2.0.0"]
        assert len(files(tmp_path)) == 3
        shutil.rmtree(broken)
        assert send(agent, EVERY[1], message=scanned, hello=b"LHLO mx") == [b"250 2.0.0"]
    assert headers(tmp_path, "carol")["X-Spam-Flag"] == "NO"
    assert len(files(tmp_path)) == 4


def test_the_recipients_fail_together_in_smtp(tmp_path, copies, scanned):
    """One reply stands for all: nothing is delivered, in any folder."""
    block(tmp_path / "dora" / "Maildir" / ".Junk")
    with running_agent(copies=copies, root=str(tmp_path)) as agent:
        assert send(agent, *EVERY, message=scanned) == [b"451 4.3.0"]
    assert files(tmp_path) == []


def lf(raw):
    return raw.replace(b"\r\n", b"\n")


def test_only_verdicts_of_the_model_are_replaced(copies, scanned):
    """Mail that was not scanned, is observed, too large, or ruled by a list stays as it is."""
    to = [name.decode() for name in EVERY]
    assert set(copies.of(lf(scanned), "", to)) == {
        "bob@x.example",
        "carol@x.example",
        "dora@x.example",
    }
    assert copies.of(lf(RAW), "", to) == {}
    assert copies.of(lf(add_to_message(RAW, unscanned_fields("busy"))), "", to) == {}
    ruled = lf(scanned).replace(b"\nX-Spamnb-Signature", b"; reason=block\nX-Spamnb-Signature", 1)
    assert ruled != lf(scanned)
    assert copies.of(ruled, "", to) == {}
    assert copies.of(lf(scanned) + b"x" * MOST_BYTES, "", to) == {}


def put_list(home, listed):
    with Filter.open(home) as model:
        owner = ListOwner("person", id=model.person("eve"))
        model.store.transact(lambda view: view.put_senders(owner.key, listed))


def test_the_lists_of_recipients_decide_in_their_copies(home, copies, scanned):
    """Who does not want a sender finds the mail in Junk, also if it was scanned for several."""
    to = ["eve@x.example", "fred@x.example"]
    listed = SenderList("person", "eve").put("news@a.example", "unwanted", 5)
    put_list(home, listed)
    made = copies.of(lf(scanned), "news@a.example", to)
    copies.apply_settings(SessionConfig(home, persons=NAMES))  # it closes the model
    put_list(home, None)
    assert set(made) == {"eve@x.example"}
    head = email.message_from_bytes(made["eve@x.example"])
    assert "unwanted-by-person" in head["X-Spamnb-Verdict"]
    assert head["X-Spam-Flag"] == "YES"


def test_a_fault_of_the_model_leaves_the_message_as_it_came(tmp_path, scanned):
    """Without a model each recipient gets the message with the verdict that it has."""
    copies = PersonalCopies(SessionConfig(tmp_path / "none", persons=NAMES), silent)
    mail = tmp_path / "mail"
    with running_agent(copies=copies, root=str(mail)) as agent:
        assert send(agent, *EVERY, message=scanned) == [b"250 2.0.0"]
    verdict = email.message_from_bytes(scanned)["X-Spamnb-Verdict"]
    found = [email.message_from_bytes(path.read_bytes()) for path in files(mail)]
    assert [one["X-Spamnb-Verdict"] for one in found] == [verdict] * 4


class BrokenCopies:
    """Copies that always fail."""

    is_needed = True

    def of(self, raw, sender, recipients):
        raise RuntimeError(f"{len(raw)} {sender} {len(recipients)}")


def test_a_bug_in_the_copies_delivers_the_message_as_it_came(tmp_path, scanned):
    """An internal fault is counted, and no recipient waits for its cure."""
    with running_agent(copies=BrokenCopies(), root=str(tmp_path)) as agent:
        assert send(agent, *EVERY, message=scanned) == [b"250 2.0.0"]
        assert agent.meters.value("faults") == 1
    assert len(files(tmp_path)) == 4
