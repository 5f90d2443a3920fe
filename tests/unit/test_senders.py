"""Lists of senders: their entries, precedence, forged senders, hostile text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import LimitError, UserError
from spamnb.mail.envelope import LocalHosts
from spamnb.policy.headers import ScanVerdict
from spamnb.policy.rulings import Ruling, Rulings, shown_verdict
from spamnb.policy.senders import (
    MOST_SENDERS,
    SenderEvidence,
    SenderList,
    owner_domain,
    ruling_of,
    sender_of,
)

LOCAL = LocalHosts(hosts=("mx.example",), authserv_ids=("mx.example",))
PASSED = (
    b"Authentication-Results: mx.example; dkim=pass header.d=friend.example\r\n"
    b"Received: by mx.example\r\n"
)
FROM = b"From: Ann <ann@friend.example>\r\n"


def listed(kind="person", **words):
    """A list with `_at_` for @ and `_` for a dot in the names of senders."""
    found = SenderList(kind)
    for name, word in words.items():
        found = found.put(name.replace("_at_", "@").replace("_", "."), word, 1)
    return found


def ruled(*lists, head=FROM, sender=""):
    return ruling_of(lists, SenderEvidence(head + b"\r\n", LOCAL, sender))


# --- entries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("News@Example.ORG", "news@example.org"),
        (" <ann@x.example> ", "ann@x.example"),
        ("EXAMPLE.org.", "example.org"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("ann@MÜNCHEN.example", "ann@xn--mnchen-3ya.example"),
        ("ex\u0430mple.org", "xn--exmple-4nf.org"),
        ('"ann"@x.example', "ann@x.example"),
    ],
)
def test_a_sender_has_one_form(text, entry):
    """Case, quotes and Unicode in a domain do not count; a look-alike is another domain."""
    assert sender_of(text) == entry


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.org", "*@example.org", "@example.org", "org", ".", "..", "a@b@c.example",
     "a b@x.example", "a@x.example\r\nX-Spam-Flag: NO", "a@x.example\0", "a\n@x.example",
     "x" * 1_000_000, "a@" + "x" * 1_000_000 + ".example", "ann@[192.0.2.1]", "192.0.2.1",
     "\u212annn@x.example", "än@x.example", "a@-x.example", f"{'a' * 65}@x.example",
     "a." * 200 + "example", "a@x.example wanted 5"],
)  # fmt: skip
def test_hostile_text_is_no_sender(text):
    """Wildcards, line ends, texts of a megabyte and look-alikes of letters are refused."""
    with pytest.raises(UserError) as refused:
        sender_of(text)
    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()


@given(st.text(max_size=300))
def test_every_sender_is_one_printable_word(text):
    """What is accepted has no blank and no control character, and is accepted again as it is."""
    try:
        entry = sender_of(text)
    except UserError:
        return
    assert entry.isascii()
    assert entry.isprintable()
    assert " " not in entry
    assert len(entry) <= 254
    assert sender_of(entry) == entry


def test_a_domain_of_recipients_has_one_form():
    """An @ before it does not count; an address is no domain."""
    assert owner_domain("@Example.ORG.") == owner_domain("example.org") == "example.org"
    for text in ("ann@example.org", "", "*", "org", "x" * 1_000_000):
        with pytest.raises(UserError):
            owner_domain(text)


def test_a_list_is_limited_and_changes_by_its_opposite():
    """One entry for each sender; a full list takes no more, but can be changed."""
    senders = SenderList("person", "ann")
    for number in range(MOST_SENDERS):
        senders = senders.put(f"a{number}@x.example", "wanted", number)
    with pytest.raises(LimitError):
        senders.put("more@x.example", "wanted", 1)
    changed = senders.put("a5@x.example", "unwanted", 5)
    assert changed.word_of("a5@x.example") == "unwanted"
    assert changed.put("a5@x.example", "wanted", 5) == senders
    assert len(senders.put("a5@x.example", None, 9)) == MOST_SENDERS - 1
    assert len(senders.lines) < 100 * MOST_SENDERS
    assert senders.word_of("5@x.example") is senders.word_of("a5@x.exampl") is None


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=300))
def test_each_entry_of_a_list_is_found(given_entries):
    """Names that begin alike, in lists of all sizes; no others are found."""
    names = ["a", "aa", "a-b", "a.b", "a+b", "a@b", "ab"]
    want, senders = {}, SenderList("site")
    for number, is_wanted in given_entries:
        word = "wanted" if is_wanted else "unwanted"
        name = f"{names[number % 7]}{number // 7 or ''}.example"
        want[name], senders = word, senders.put(name, word, number)
    assert {one.sender: one.word for one in senders} == want
    for name in [f"{one}{number or ''}.example" for one in names for number in range(60)]:
        assert senders.word_of(name) == want.get(name)


# --- rulings -----------------------------------------------------------------------------------


def test_only_an_authentic_sender_is_wanted():
    """A forged From gains nothing; an unwanted sender needs no proof."""
    wanted, unwanted = (listed(ann_at_friend_example=word) for word in ("wanted", "unwanted"))
    assert ruled(wanted) is None
    assert ruled(wanted, head=PASSED + FROM).reason == "wanted-by-person"
    assert ruled(wanted, head=PASSED.replace(b"mx.example", b"evil.example") + FROM) is None
    assert ruled(wanted, head=PASSED + FROM + b"From: x@evil.example\r\n") is None
    assert ruled(wanted, head=PASSED, sender="ann@friend.example").side == "wanted"
    assert ruled(unwanted).reason == "unwanted-by-person"
    assert ruled(unwanted, head=b"", sender="ANN@friend.example").side == "unwanted"
    assert ruled(unwanted, head=b"") is None


def test_the_first_list_that_names_the_sender_decides():
    """A person's list comes before the domain's, and this before the site's."""
    head = PASSED + FROM
    yes = listed("person", friend_example="wanted")
    no = listed("domain", friend_example="unwanted")
    assert ruled(yes, no, head=head).reason == "wanted-by-person"
    assert ruled(no, yes, head=head).reason == "unwanted-by-domain"
    assert ruled(listed("person", other_example="wanted"), no, head=head).kind == "by-domain"
    assert ruled(yes, no).reason == "unwanted-by-domain"  # forged: as if it were not listed


def test_the_most_specific_entry_of_a_list_decides():
    """An address comes before its domain, and a domain before the one above."""
    mine = listed(ann_at_friend_example="unwanted", friend_example="wanted", sub_friend_example=
                  "unwanted")  # fmt: skip
    head = PASSED + FROM
    assert ruled(mine, head=head).entry == "ann@friend.example"
    assert ruled(mine, head=head.replace(b"ann@", b"bob@")).side == "wanted"
    assert ruled(mine, head=head.replace(b"ann@", b"ann@a.sub.")).entry == "sub.friend.example"
    assert ruled(mine, head=head.replace(b"ann@", b"ann@un")) is None


def test_a_wanted_address_comes_before_an_unwanted_one():
    """A message that two listed addresses claim is wanted, if the wanted one is authentic."""
    mine = listed(friend_example="wanted", spam_example="unwanted")
    assert ruled(mine, head=PASSED + FROM, sender="x@spam.example").side == "wanted"
    assert ruled(mine, head=FROM, sender="x@spam.example").side == "unwanted"


def test_many_claimed_senders_cost_a_bounded_time():
    """A From field of thousands of addresses, and a domain of thousands of labels, are not read."""
    mine = listed(x_example="unwanted")
    many = b"From: " + b", ".join(b"a%d@b.example" % n for n in range(500)) + b", a@x.example\r\n"
    assert ruled(mine, head=many) is None
    assert ruled(mine, head=b"From: a@" + b"b." * 3000 + b"x.example\r\n") is None


def test_rulings_are_applied_to_each_recipient():
    """A recipient's list beats the one for all; unwanted mail is at least junk."""
    found = ScanVerdict("spam", 0.99, 4.0, "reject", personal={"b": ScanVerdict("ham", 0.1, -2.0,
                        "deliver")})  # fmt: skip
    yes = Ruling("wanted", "by-person", "x.example")
    no = Ruling("unwanted", "by-site", "y.example")
    done = Rulings(no, {"a": yes}).applied(found)
    assert [done.of(one).decision for one in "abc"] == ["deliver", "junk", "reject"]
    assert [done.of(one).reason for one in "abc"] == [yes.reason, no.reason, no.reason]
    assert Rulings().applied(found) is found
    assert Rulings(no, {"a": yes}).reason("ab") == ""
    assert Rulings(no, {"a": yes}).reason("a") == "wanted-by-person"
    assert Rulings(no).reason("") == "unwanted-by-site"
    assert Rulings(no, {"a": yes}).entry == "x.example y.example"
    block = Rulings(Ruling("block", "sender", "x")).applied(found)
    assert {block.of(one).decision for one in "abc"} == {"reject"}


def test_a_header_for_several_recipients_names_no_list_of_one():
    """If they agree on the decision for different reasons, the header gives none."""
    found = ScanVerdict("ham", 0.1, -2.0, "deliver")
    no = Ruling("unwanted", "by-person", "x.example")
    personal = ScanVerdict("spam", 0.9, 2.0, "junk")
    done = Rulings(None, {"a": no}).applied(found._replace(personal={"b": personal}))
    shown = shown_verdict(done, ("a", "b"))
    assert (shown.decision, shown.reason) == ("junk", "")
    assert shown_verdict(done, ("a",)).reason == "unwanted-by-person"
    both = Rulings(None, {"a": no, "b": no}).applied(found)
    assert shown_verdict(both, ("a", "b")).reason == "unwanted-by-person"
