"""Lists of the quarantine: every message once, on pages of bounded work, for users and for all."""

from types import SimpleNamespace

import pytest

from spamnb.console import operations
from spamnb.console import pages_kept as pages
from spamnb.console.site import OF_USER, ApiCaller, ApiRequest
from spamnb.errors import RefError, StoreBusyError
from spamnb.mail.envelope import Envelope
from spamnb.scan.quarantine import Quarantine
from spamnb.scan.values import ReleaseReply
from spamnb.settings.values import TeachingRules

ALL = ApiCaller("root", frozenset(("quarantine",)))
ALICE, SALES, BOB = (
    ApiCaller("x", OF_USER, f"{name}@example.org") for name in ("alice", "sales", "bob")
)


@pytest.fixture
def site(tmp_path):
    kept = Quarantine(tmp_path / "quarantine")
    for number in range(60):
        to = ["carl@example.org"]
        to += ["alice@example.org"] if number % 7 == 0 else []
        to += ["sales@example.org"] if number % 10 == 0 else []
        to += ["bob@example.org"] if number == 3 else []
        rcpts = tuple(f"RCPT TO:<{one}>".encode() for one in to)
        kept.keep(b"Subject: x\r\n\r\n", Envelope("", tuple(to), rcpt_lines=rcpts), {})
    return SimpleNamespace(
        quarantine=kept, config=SimpleNamespace(teaching=TeachingRules()), users_release="all"
    )


def walked(site, caller, limit):
    """The IDs on all pages of a list, and how many pages there are."""
    found, cursor, count = [], "", 0
    while cursor is not None:
        values = {"limit": limit, "cursor": cursor, "q": ""}
        reply = operations.listed_messages(site, ApiRequest(caller, values)).value
        assert len(reply["messages"]) <= limit
        found += [one["id"] for one in reply["messages"]]
        cursor, count = reply["next"], count + 1
    return found, count


@pytest.mark.parametrize("most", [1, 7, 59, 60, 61])
@pytest.mark.parametrize("limit", [1, 6, 60, 200])
def test_a_list_has_each_message_once(site, monkeypatch, most, limit):
    """Whatever a page may hold or read; the last page has no next one."""
    monkeypatch.setattr(operations, "MOST_READ", most)
    everything = site.quarantine.ids()[::-1]
    found, count = walked(site, ALL, limit)
    assert found == everything
    assert count == -(-60 // min(most, limit))
    for caller, kept in ((ALICE, everything[::-1][::7][::-1]), (BOB, [everything[::-1][3]])):
        assert walked(site, caller, limit)[0] == kept


def test_an_empty_quarantine_has_one_page(tmp_path, site):
    """There is no next page."""
    site.quarantine = Quarantine(tmp_path / "none")
    assert walked(site, ALL, 5) == ([], 1)


@pytest.mark.parametrize("most", [1, 7, 60])
@pytest.mark.parametrize("rows", [1, 4, 50])
def test_the_page_joins_the_addresses_of_a_user(site, monkeypatch, most, rows):
    """Each message is on one page, with all addresses of the user that it is for."""
    monkeypatch.setattr(operations, "MOST_READ", most)
    monkeypatch.setattr(pages, "_ROWS", rows)
    visitor = SimpleNamespace(callers=lambda: (ALICE, SALES))
    found, cursor = {}, ""
    while True:
        request = SimpleNamespace(visitor=visitor, values={"cursor": cursor, "q": ""})
        facts = pages.show_quarantine(site, request).facts
        assert len(facts["rows"]) <= rows
        for row in facts["rows"]:
            assert row["id"] not in found
            found[row["id"]] = row["waiting"]
        if not facts["next"]:
            break
        cursor = facts["next"].partition("cursor=")[2]
    ids = site.quarantine.ids()
    assert found.keys() == {*ids[::7], *ids[::10]}
    assert found[ids[0]] == ["alice@example.org", "sales@example.org"]
    assert list(found) == sorted(found, reverse=True)


def test_a_login_without_addresses_has_no_messages(site):
    """Its list is empty, and no message is found."""
    visitor = SimpleNamespace(callers=tuple)
    request = SimpleNamespace(
        visitor=visitor, values={"cursor": "", "q": "", "id": site.quarantine.ids()[0]}
    )
    assert pages.show_quarantine(site, request).facts["rows"] == []
    with pytest.raises(RefError):
        pages.show_kept(site, request)


def test_an_error_of_the_learner_is_none_of_the_release(site):
    """The message is delivered, and the reply says why it is not learnt."""

    def ask(op, *_, **__):
        raise StoreBusyError("the learner does not answer")

    name = site.quarantine.ids()[3]
    site.ask, site.send = ask, lambda one: [ReleaseReply(250)] * len(one.rcpt_lines)
    values = {"id": name, "only": None, "teach": True, "again": False}
    reply = operations.release(site, ApiRequest(BOB, values)).value
    assert reply["delivered"] is True
    assert (reply["training"]["state"], reply["training"]["reason"]) == (
        "refused", "the learner does not answer",
    )  # fmt: skip
    assert site.quarantine.get(name).results()[1] == ("bob@example.org", "delivered")
