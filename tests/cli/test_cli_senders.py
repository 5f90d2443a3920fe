"""Lists of senders from the command line, with and without a daemon."""

import shutil
from pathlib import Path

import pytest
from support.cli import ONE_HAM, ONE_SPAM, spamnb

from spamnb.engine.filter import Filter

pytestmark = pytest.mark.usefixtures("alone")

SETTINGS = """
[persons]
enabled = true
[local]
domains = ["example.org"]
"""


@pytest.fixture
def home(trained, tmp_path):
    home = shutil.copytree(trained, tmp_path / "home")
    config = tmp_path / "spamnb.toml"
    config.write_text(SETTINGS)
    return home, config


def run(place, *words, code=0):
    home, config = place
    done = spamnb(home, "--config", config, "senders", *words)
    assert done.code == code, done.err
    return done


def test_senders_are_added_listed_and_removed(home):
    """A change names the word from before; its opposite takes it back; each list is its owner's."""
    (added,) = run(home, "add", "--json", "--person", "Ann+x@example.org", "wanted",
                   "News@Example.NET").json  # fmt: skip
    assert (added["state"], added["before"], added["owner"]) == ("listed", None, "ann")
    assert "authserv_ids" in added["warning"]
    (again,) = run(home, "add", "--json", "--person", "ann", "wanted", "news@example.net").json
    assert again["state"] == "unchanged"
    run(home, "add", "--domain", "example.org", "unwanted", "a.example", "b.example")
    done = run(home, "add", "wanted", "partner.example")
    assert done.lines == ["all recipients: partner.example is wanted, was not listed"]
    assert "authserv_ids" in done.err
    found = [(one["list"], one["owner"], one["word"], one["sender"]) for one in
             run(home, "list", "--json").json]  # fmt: skip
    assert found == [
        ("domain", "example.org", "unwanted", "a.example"),
        ("domain", "example.org", "unwanted", "b.example"),
        ("person", "ann", "wanted", "news@example.net"),
        ("site", "", "wanted", "partner.example"),
    ]
    (mine,) = run(home, "list", "--person", "ann").lines
    assert "person ann" in mine
    assert "news@example.net" in mine
    assert run(home, "list", "--person", "bob").lines == []
    (moved,) = run(home, "add", "--json", "--person", "ann", "unwanted", "news@example.net").json
    assert moved["before"] == "wanted"
    (gone,) = run(home, "remove", "--json", "--person", "ann", "news@example.net").json
    assert (gone["before"], gone["word"]) == ("unwanted", None)
    done = run(home, "remove", "--person", "ann", "news@example.net")
    assert done.lines == ["person ann: news@example.net is not listed, as before"]
    assert run(home, "list", "--person", "ann").lines == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "wanted", "*"), "not a sender"),
        (("add", "wanted", "x" * 100_000), "at most 1000 characters"),
        (("add", "wanted", "a@x.example\r\nX-Spam-Flag: NO"), "not a sender"),
        (("add", "--domain", "example.com", "wanted", "x.example"), "no mailboxes here"),
        (("add", "--person", "x@example.com", "wanted", "x.example"), "of a person here"),
        (("add", "--person", "a", "--domain", "example.org", "wanted", "x.example"), "not both"),
        (("add", "perhaps", "x.example"), "perhaps"),
    ],
)
def test_a_change_that_is_refused_says_why(home, words, said):
    """Nothing is stored; the error is one line."""
    done = run(home, *words, code=2)
    assert said in done.err
    assert done.err.count("\n") == 1
    assert run(home, "list").lines == []


def test_without_persons_domains_have_lists(home):
    """A person's list needs persons, that of a domain or of the site does not."""
    home[1].write_text('[local]\ndomains = ["example.org"]\n')
    assert "persons" in run(home, "add", "--person", "ann", "wanted", "x.example", code=2).err
    run(home, "add", "--domain", "example.org", "unwanted", "x.example")
    run(home, "add", "unwanted", "x.example")
    assert len(run(home, "list").lines) == 2


def test_lists_survive_maintenance(home, tmp_path):
    """Backup, restore, rewind, relearn and compact keep the lists; an export has none."""
    run(home, "add", "--person", "ann.secret", "wanted", "news@example.net")
    want = run(home, "list").lines

    def other(*words):
        done = spamnb(home[0], "--config", home[1], *words)
        assert done.code == 0, done.err
        return done

    other("correct", "--person", "mallory", "spam", ONE_HAM)
    other("relearn", "--without", "mallory", "--yes")
    other("compact")
    other("backup", tmp_path / "copy")
    other("check")
    assert run(home, "list").lines == want
    restored = tmp_path / "restored", home[1]
    assert spamnb(restored[0], "restore", tmp_path / "copy").code == 0
    assert run(restored, "list").lines == want
    assert "ann.secret" not in other("export", tmp_path / "export").out
    assert b"news@example.net" not in (tmp_path / "export").read_bytes()


def test_explain_names_the_list_that_decides(home, tmp_path):
    """The verdict and its clues stay; the last line has the decision of the list."""
    names = 'authserv_ids = ["mx.example"]\nhosts = ["mx.example"]'
    home[1].write_text(SETTINGS.replace("[local]", f"[local]\n{names}"))
    mail = tmp_path / "mail"
    passed = b"Return-Path: <x@shop.example>\nAuthentication-Results: mx.example; "
    passed += b"spf=pass smtp.mailfrom=shop.example\n"
    hop = b"Received: from x (x [192.0.2.1]) by mx.example with ESMTP id 4QF; now\n"
    mail.write_bytes(passed + hop + Path(ONE_SPAM).read_bytes())
    run(home, "add", "--person", "ann", "wanted", "x@shop.example")
    run(home, "add", "unwanted", "shop.example")

    def explained(*words):
        return spamnb(home[0], "--config", home[1], "explain", *words)

    ann = explained("--person", "ann@example.org", mail)
    assert ann.lines[-1] == (
        "a list decides instead: deliver (wanted-by-person), x@shop.example is on the wanted list"
        " of the person"
    )
    assert explained(mail).lines[-1].endswith("on the unwanted list of all recipients")
    (found,) = explained("--json", mail).json
    assert found["list"]["reason"] == "unwanted-by-site"
    (other,) = explained("--json", ONE_SPAM).json
    assert other["list"] is None


def test_score_names_the_list_of_the_person(home, tmp_path):
    """The verdict stays; the list is beside it, and decides the exit code."""
    mail = tmp_path / "mail"
    mail.write_bytes(b"Return-Path: <x@shop.example>\n" + Path(ONE_HAM).read_bytes())
    run(home, "add", "--person", "ann", "unwanted", "shop.example")

    def scored(*words):
        return spamnb(home[0], "--config", home[1], "score", *words, mail)

    ann = scored("--person", "ann@example.org", "--exit-code")
    assert ann.code == 1
    said = "junk (unwanted-by-person), shop.example is on the unwanted list of the person"
    assert ann.lines[1:] == [f"    a list decides instead: {said}"]
    (found,) = scored("--json", "--person", "ann").json
    assert (found["decision"], found["list"]["decision"]) == ("deliver", "junk")
    (other,) = scored("--json", "--person", "bob").json
    assert "list" not in other


@pytest.mark.parametrize("count", [1, 300])
def test_score_names_the_list_of_all_recipients(home, tmp_path, count):
    """In one process and in several; the exit code follows the list."""
    folder = tmp_path / "mail"
    folder.mkdir()
    for number in range(count):
        raw = b"Return-Path: <x@shop.example>\nX-Number: %d\n" % number
        (folder / f"{number}.eml").write_bytes(raw + Path(ONE_HAM).read_bytes())
    (folder / "other.eml").write_bytes(Path(ONE_HAM).read_bytes())
    run(home, "add", "unwanted", "shop.example")

    def scored(*words):
        return spamnb(home[0], "--config", home[1], "score", *words)

    found = scored("--json", "--jobs", 2, folder).json
    lists = [one["list"]["reason"] for one in found if "list" in one]
    assert (len(found), lists) == (count + 1, ["unwanted-by-site"] * count)
    assert scored("--exit-code", folder / "0.eml").code == 1
    assert scored("--exit-code", folder / "other.eml").code == 0


def test_explain_names_the_lists_of_a_message_in_the_history(home, tmp_path):
    """By a reference: the list that decided then, and those that name the sender now."""
    notes = {"to": "ann@example.org", "from": "x@news.shop.example", "list": "unwanted-by-person"}
    notes["author"] = "boss@partner.example"
    raw = Path(ONE_HAM).read_bytes()
    with Filter.open(home[0]) as model:
        batch = model.reader.feature_batch([raw])
        (verdict,) = model.remember([batch], model.score_batches([batch]), [notes])
    run(home, "add", "--person", "ann", "unwanted", "shop.example")
    run(home, "add", "wanted", "partner.example")

    def explained(*words):
        return spamnb(home[0], "--config", home[1], "explain", *words, verdict.signature)

    wanted = "partner.example is on the wanted list of all recipients: deliver (wanted-by-site)"
    assert explained("--person", "ann").lines[-3:] == [
        "a list decided when it was scanned: unwanted-by-person",
        "shop.example is on the unwanted list of the person: junk (unwanted-by-person)",
        f"{wanted}, if the sender is authentic",
    ]
    (found,) = explained("--json").json
    assert (found["list"], found["list_then"]) == (None, "unwanted-by-person")
    assert [one["reason"] for one in found["listed"]] == ["wanted-by-site"]
