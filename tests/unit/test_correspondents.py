"""Whom people write to: letters, keyed hashes of them, limits, erasure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.mail.envelope import LocalHosts
from spamnb.mail.message import parted
from spamnb.policy.letters import MOST_ANSWERED, answered_in, letter_in, person_name
from spamnb.records.correspondents import KEPT_US, MOST, Correspondents

SECRET = b"s" * 32
DAY = 86_400 * 1_000_000
NOW = 1_000 * DAY
HEAD = (
    b"From: ann@site.example\r\nTo: Bob <Bob@shop.example>, carol@post.example\r\n"
    b"Cc: dave@post.example\r\nMessage-ID: <1@site.example>\r\nSubject: hi\r\n\r\n"
)


def fields_of(head):
    return parted(head, LocalHosts(), set())[0].fields


def letter(head, recipients=None):
    return letter_in(fields_of(head), recipients)


def answered(head):
    return answered_in(fields_of(head))


@pytest.fixture
def known(tmp_path):
    found = Correspondents(tmp_path, SECRET)
    yield found
    found.close()


def test_a_letter_names_recipients_and_itself():
    """By the envelope, or without one by To, Cc and Bcc; each address once, in one form."""
    found = letter(HEAD, ["Bob@SHOP.example", "bob@shop.example"])
    assert found == (("bob@shop.example",), "1@site.example")
    assert letter(HEAD).addresses == (
        "bob@shop.example",
        "carol@post.example",
        "dave@post.example",
    )


@pytest.mark.parametrize(
    "field",
    [
        b"Auto-Submitted: auto-replied",
        b"Precedence: bulk",
        b"Precedence: list",
        b"List-Id: <friends.site.example>",
        b"List-Unsubscribe:\r\n <mailto:x@site.example>",
    ],
)
def test_mail_of_programs_is_no_letter(field):
    """An automatic answer to a stranger makes no correspondent."""
    assert letter(field + b"\r\n" + HEAD) is None
    assert letter(b"Auto-Submitted: no\r\n" + HEAD) is not None


def test_mail_to_many_or_to_none_is_no_letter():
    """Fifty recipients are still a letter."""
    many = [f"a{n}@x.example" for n in range(51)]
    assert letter(HEAD, many) is None
    assert letter(HEAD, many[:50]) is not None
    assert letter(HEAD, []) is None
    assert letter(b"Subject: x\r\n\r\n") is None


def test_what_a_message_answers():
    """In-Reply-To first, then References from the end; a bounded number."""
    ids = b" ".join(b"<%d@x.example>" % number for number in range(40))
    head = b"References: " + ids + b"\r\nIn-Reply-To: <a@site.example>\r\n\r\n"
    found = answered(head)
    assert found[:2] == ["a@site.example", "39@x.example"]
    assert len(found) == MOST_ANSWERED
    assert answered(b"References:" + b"<" * 70_000 + b"\r\n\r\n") == []


def test_relations_of_an_owner(known):
    """Nothing is known before a first letter; then reply, correspondent, none."""
    assert known.relation("ann", "bob@shop.example", [], NOW) is None
    known.note("ann", ["bob@shop.example"], "1@site.example", NOW)
    assert known.relation("ann", "Bob@shop.example", [], NOW) == "correspondent"
    assert known.relation("ann", "x@shop.example", ["2@z", "1@site.example"], NOW) == "reply"
    assert known.relation("ann", "x@y.example", ["1@site.example"], NOW) == "none"
    assert known.relation("ann", "x@y.example", ["2@z"], NOW) == "none"
    assert known.relation("ben", "bob@shop.example", ["1@site.example"], NOW) is None


def test_rows_end_after_their_time(known):
    """A newer letter renews one; an older one, read later, does not."""
    known.note("ann", ["bob@shop.example"], "1@site.example", NOW)
    late = NOW + KEPT_US + 1
    assert known.relation("ann", "bob@shop.example", ["1@site.example"], late) == "none"
    known.note("ann", ["bob@shop.example"], "", NOW + DAY)
    known.note("ann", ["bob@shop.example"], "", NOW - DAY)
    assert known.relation("ann", "bob@shop.example", [], late) == "correspondent"


def test_an_owner_has_a_limited_number(known):
    """The oldest quarter ends when there are more; others keep theirs."""
    known.note("ben", ["bob@shop.example"], "", NOW)
    for start in range(0, MOST + 100, 50):
        addresses = [f"a{number}@x.example" for number in range(start, start + 50)]
        known.note("ann", addresses, "", NOW + start)
    assert known.relation("ann", "a0@x.example", [], NOW) == "none"
    assert known.relation("ann", f"a{MOST}@x.example", [], NOW) == "correspondent"
    assert known.relation("ben", "bob@shop.example", [], NOW) == "correspondent"
    assert known.erase("ann") <= MOST
    assert known.relation("ann", f"a{MOST}@x.example", [], NOW) is None


@pytest.mark.parametrize(
    ("author", "name"),
    [
        (b"Ann Lee <ann@site.example>", "ann lee"),
        (b'"Lee, Ann" <x@mail.example>', "ann lee"),
        (b"=?utf-8?q?LEE=2C?= =?utf-8?q?_Ann?= <x@mail.example>", "ann lee"),
        (b"=?utf-8?b?w4RubmUgTMOkbQ==?= <x@mail.example>", "läm änne"),
        (b"Ann <ann@site.example>", ""),
        (b"ann@site.example", ""),
        (b'"ann lee ann@site.example" <x@mail.example>', ""),
        (b"the very best offers of this whole week <x@mail.example>", ""),
        (b"\xff\xfe <", ""),
    ],
)
def test_a_name_is_that_of_a_person_in_any_order(author, name):
    """Two to six words; one word is a role or a brand."""
    assert person_name(fields_of(b"From: " + author + b"\r\n\r\n")) == name
    assert person_name(fields_of(b"Subject: x\r\n\r\n")) == ""


def test_the_name_of_a_user_at_another_address(known):
    """It is known of all owners, for as long as a correspondent, and until it is erased."""
    known.note_name("ann", "ann lee", "ann@site.example", NOW)
    known.note_name("ben", "ben low", "ben@site.example", NOW)
    assert known.has_name_of_user("ann lee", "al@mail.example", NOW + DAY)
    assert not known.has_name_of_user("ann lee", "Ann@Site.example", NOW + DAY)
    assert not known.has_name_of_user("ann low", "al@mail.example", NOW + DAY)
    assert not known.has_name_of_user("ann lee", "al@mail.example", NOW + KEPT_US + DAY)
    assert known.erase("ann") == 1
    assert not known.has_name_of_user("ann lee", "al@mail.example", NOW + DAY)
    assert known.has_name_of_user("ben low", "al@mail.example", NOW + DAY)
    assert known.relation("ann", "al@mail.example", [], NOW) is None


def test_no_address_is_in_the_file(tmp_path):
    """Neither addresses nor names of persons nor Message-IDs, also after erasure."""
    known = Correspondents(tmp_path, SECRET)
    known.note("ann-the-owner", ["bob-the-other@shop.example"], "mark-of-it@site.example", NOW)
    known.close()
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (b"ann-the-owner", b"bob-the-other", b"shop.example", b"mark-of-it"):
        assert text not in content
    other = Correspondents(tmp_path, b"t" * 32)
    assert other.relation("ann-the-owner", "bob-the-other@shop.example", [], NOW) is None
    other.close()


def test_a_damaged_file_is_replaced(tmp_path):
    """People are known again as they write."""
    Correspondents(tmp_path, SECRET).close()
    for path in (tmp_path / "correspondents").iterdir():
        path.write_bytes(b"\xff" * 9_000)
    known = Correspondents(tmp_path, SECRET)
    known.note("ann", ["bob@shop.example"], "", NOW)
    assert known.relation("ann", "bob@shop.example", [], NOW) == "correspondent"
    known.close()


@given(st.binary(max_size=400))
def test_any_header_is_read(head):
    """Nothing raises."""
    letter(head)
    answered(b"References: " + head)
