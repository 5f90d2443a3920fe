"""Allow and block lists: their entries, proof of the sender, mistakes in a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import SettingsError
from spamnb.mail.envelope import Client, Envelope, LocalHosts
from spamnb.mail.results import passed_domains, read_results
from spamnb.policy.senders import SenderEvidence, aligned
from spamnb.scan.access_lists import (
    AccessLists,
    NetworkTable,
    RuleFiles,
    RuleList,
    parse,
)

LOCAL = LocalHosts(hosts=("mx.example",), authserv_ids=("mx.example",))
HOP = b"Received: from friend.example by mx.example; now\r\n"
"""the MTA's own field: what stands above it is the site's"""
PASSED = b"Authentication-Results: mx.example; dkim=pass header.d=friend.example\r\n" + HOP


def envelope(sender="", to=("bob@b.example",), client="192.0.2.7"):
    return Envelope(sender=sender, recipients=to, client=Client(address=client))


def ruled(rules, *, head=b"", local=LOCAL, **values):
    given = envelope(**values)
    return rules.on(given, SenderEvidence(head + b"\r\nbody\r\n", local, given.sender))


def allow(text):
    return AccessLists(allow=parse(text, "allow"))


def block(text):
    return AccessLists(block=parse(text, "block"))


# --- files ---------------------------------------------------------------------------------------


def test_a_list_is_read_and_read_again(tmp_path):
    """Comments, blanks, any case; a loaded list stays until it is loaded again."""
    file = tmp_path / "allow"
    file.write_text("# friends\n\n  client 192.0.2.0/24  # office\nsender Ann@A.example\n")
    rules = AccessLists.load(RuleFiles(allow=str(file)))
    assert rules.allow.client.find("192.0.2.99") == "192.0.2.0/24"
    assert rules.allow.sender == {"ann@a.example"}
    file.write_text("domain b.example.\nrecipient @c.example\n")
    assert rules.allow.sender == {"ann@a.example"}
    again = AccessLists.load(RuleFiles(allow=str(file)))
    assert (again.allow.domain, again.allow.recipient) == ({"b.example"}, {"@c.example"})
    assert ruled(AccessLists.load(RuleFiles())) is None


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("clinet 192.0.2.1", "not an entry"),
        ("client", "not an entry"),
        ("client 192.0.2.1 x", "not an entry"),
        ("client 192.0.2.300", "not an address or network"),
        ("sender example.org", "not an address"),
        ("sender ann@a.example always", "not a network of clients"),
        ("sender ann@a.example 192.0.2.0/33", "not a network of clients"),
        ("sender ann@a.example 192.0.2.0/24 x", "not an entry"),
        ("recipient bob@b.example unauthenticated", "not an entry"),
        ("domain ann@example.org", "not a domain"),
        ("domain 192.0.2.0/24", "not a domain"),
        ("recipient bob", "not an address"),
    ],
)
def test_a_wrong_line_is_named_by_file_and_line(tmp_path, line, error):
    """The error is one line with the place of the mistake and the allowed forms."""
    file = tmp_path / "block"
    file.write_text(f"# list\nsender ann@a.example\n{line}\n")
    with pytest.raises(SettingsError, match=f"block, line 3: .*{error}"):
        AccessLists.load(RuleFiles(block=str(file)))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """An unreadable list is an error, not an empty list."""
    with pytest.raises(SettingsError, match="absent cannot be read"):
        AccessLists.load(RuleFiles(allow=str(tmp_path / "absent")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        AccessLists.load(RuleFiles(block=str(tmp_path / "binary")))


# --- clients and recipients ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("192.0.2.1", True),
        ("::ffff:192.0.2.1", True),
        ("IPV6:2001:db8::1", True),
        ("2001:db8::9", True),
        ("2001:db8::9%eth0", True),
        ("198.51.100.1", False),
        ("", False),
        ("[UNAVAILABLE]", False),
    ],
)
def test_networks_know_addresses_in_every_form(address, inside):
    """Addresses are recognized in the forms of sockets and XFORWARD; other texts never match."""
    networks = NetworkTable(["192.0.2.0/24", "2001:db8::/32"])
    assert bool(networks.find(address)) == inside
    assert not NetworkTable().find(address)
    assert not NetworkTable(["unix"]).find(address)


def test_a_unix_socket_is_a_network_of_its_own():
    """Clients on a unix socket match `unix` only, and no other client does."""
    assert NetworkTable(["192.0.2.0/24", "unix"]).find("unix") == "unix"
    assert NetworkTable(["192.0.2.0/24"]).find("unix") == ""


def test_a_client_is_listed_by_its_network():
    """The reason has the kind of the entry, the ruling the entry itself."""
    ruling = ruled(allow("client 192.0.2.0/24"))
    assert (ruling.reason, ruling.entry) == ("allow-client", "192.0.2.0/24")
    assert ruled(block("client 192.0.2.7")).reason == "block-client"
    assert ruled(block("client 198.51.100.0/24")) is None


@pytest.mark.parametrize("make", [allow, block])
def test_recipients_count_only_if_all_are_listed(make):
    """Otherwise a spammer could add one listed recipient to any message."""
    rules = make("recipient bob@b.example\nrecipient @c.example")
    assert ruled(rules, to=("Bob@b.example",)).kind == "recipient"
    assert ruled(rules, to=("bob@b.example", "x@C.example")).entry == "bob@b.example"
    assert ruled(rules, to=("bob@b.example", "eve@b.example")) is None
    assert ruled(rules, to=()) is None


@pytest.mark.parametrize("entry", ["b\u00fccher.example", "xn--bcher-kva.example"])
@pytest.mark.parametrize(
    "domain", ["b\u00fccher.example", "B\u00dcCHER.example", "XN--bcher-kva.example"]
)
def test_a_domain_is_listed_in_unicode_and_in_ascii(entry, domain):
    """The form in which a domain is written makes no difference to a list."""
    for line, value in ((f"domain {entry}", "domain"), (f"sender ann@{entry}", "sender")):
        assert parse(line, "list").listed(f"Ann@{domain}")[0] == value
    for line in (f"recipient @{entry}", f"recipient ann@{entry}"):
        assert parse(line, "list").takes((f"Ann@{domain}",))


def test_a_sender_may_be_vouched_for_by_the_clients_network():
    """Without a server that checks DKIM and SPF, mail of this sender from these clients passes."""
    rules = allow("sender ann@a.example 192.0.2.0/24\nsender ann@a.example 2001:db8::/32")
    for client, inside in (("192.0.2.9", True), ("2001:db8::1", True), ("198.51.100.1", False)):
        for local_hosts in (LOCAL, LocalHosts()):
            ruling = ruled(rules, sender="Ann@A.example", client=client, local=local_hosts)
            assert (ruling is not None) == inside
    assert ruled(rules, sender="ann@a.example").entry == "ann@a.example 192.0.2.0/24"
    assert ruled(rules, sender="eve@a.example") is None
    head = b"From: <ann@a.example>\r\n"
    assert ruled(rules, sender="bounce@list.example", head=head).reason == "allow-sender"
    two = b"From: <ann@a.example>, <eve@e.example>\r\n"
    assert ruled(rules, sender="bounce@list.example", head=two) is None


def test_a_sender_may_be_let_in_without_any_proof():
    """An entry with `unauthenticated` needs no proof: any client with that sender passes."""
    rules = allow("domain a.example unauthenticated\nsender bob@b.example")
    ruling = ruled(rules, sender="x@sub.a.example", local=LocalHosts())
    assert (ruling.reason, ruling.entry) == ("allow-domain", "a.example unauthenticated")
    assert ruled(rules, sender="bob@b.example", local=LocalHosts()) is None
    assert ruled(rules, sender="bob@bad-a.example", local=LocalHosts()) is None


def test_a_proof_of_one_entry_vouches_for_no_other():
    """An entry with a network has no effect on the entry of its domain, nor that one on it."""
    rules = allow("sender ann@a.example 192.0.2.0/24\ndomain a.example")
    assert ruled(rules, sender="ann@a.example", client="198.51.100.1") is None
    assert ruled(rules, sender="bob@a.example") is None
    head = b"Authentication-Results: mx.example; dkim=pass header.d=a.example\r\n" + HOP
    for sender in ("ann@a.example", "bob@a.example"):
        assert ruled(rules, sender=sender, client="198.51.100.1", head=head).kind == "domain"


def test_a_block_list_takes_no_proof(tmp_path):
    """A word without an effect is an error."""
    (tmp_path / "block").write_text("sender ann@a.example unauthenticated\n")
    with pytest.raises(SettingsError, match=r"block: sender ann@a\.example has a third word"):
        AccessLists.load(RuleFiles(block=str(tmp_path / "block")))


def test_entries_that_never_match_are_reported():
    """Without a server that checks senders, entries that need its result never match."""
    rules = allow("sender ann@a.example\ndomain b.example\nclient 192.0.2.1")
    assert rules.warning(LocalHosts()).startswith(
        "2 senders and domains of the allow list never match"
    )
    assert rules.warning(LOCAL) == ""
    for text in ("client 192.0.2.1", "sender ann@a.example unauthenticated", ""):
        assert allow(text).warning(LocalHosts()) == ""
    assert block("sender ann@a.example").warning(LocalHosts()) == ""


def test_allow_wins_over_block():
    """One allowed sender in a blocked network passes."""
    rules = AccessLists(parse("recipient bob@b.example", "a"), parse("client 192.0.2.0/24", "b"))
    assert ruled(rules).side == "allow"
    assert ruled(rules, to=("eve@b.example",)).side == "block"


# --- senders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "entry"),
    [
        ({"sender": "Ann@Evil.example"}, "ann@evil.example"),
        ({"head": b'From: "x" <ann@evil.example>\r\n'}, "ann@evil.example"),
        ({"head": b"From: friend@a.example, ann@evil.example\r\n"}, "ann@evil.example"),
        ({"sender": "x@mail.bad.example"}, "bad.example"),
        ({"sender": "x@notbad.example"}, None),
        ({"sender": ""}, None),
    ],
)
def test_blocking_a_sender_needs_no_proof(values, entry):
    """The envelope's sender or any author, by address, domain or a domain above."""
    ruling = ruled(block("sender ann@evil.example\ndomain bad.example"), **values)
    assert (ruling.entry if ruling else None) == entry


FRIEND = "sender ann@friend.example\ndomain pals.example"


@pytest.mark.parametrize(
    "head",
    [
        PASSED + b"From: Ann <ann@friend.example>\r\n",
        PASSED + b'From: "Ann, of friends" <ANN@friend.example>\r\n',
        (
            b"Authentication-Results: MX.example; spf=pass smtp.mailfrom=x@pals.example;\r\n"
            b"\tdkim=fail header.d=pals.example\r\n" + HOP + b"From: joe@mail.pals.example\r\n"
        ),
        (
            b'Authentication-Results: mx.example (a;b) 1; dkim=pass reason="a; b"\r\n'
            b" (2048-bit key) header.i=@friend.example\r\n" + HOP + b"From: ann@friend.example\r\n"
        ),
    ],
)
def test_a_proven_sender_is_allowed(head):
    """DKIM or SPF passed, a trusted server says so, and the domain is aligned with the address."""
    assert ruled(allow(FRIEND), head=head).side == "allow"


def test_a_proven_envelope_sender_is_allowed():
    """SPF proves the domain of the envelope's sender."""
    head = b"Authentication-Results: mx.example; spf=pass smtp.mailfrom=friend.example\r\n" + HOP
    ruling = ruled(allow(FRIEND), head=head, sender="ann@friend.example")
    assert (ruling.reason, ruling.entry) == ("allow-sender", "ann@friend.example")


@pytest.mark.parametrize(
    "head",
    [
        b"From: ann@friend.example\r\n",
        PASSED.replace(b"pass", b"fail") + b"From: ann@friend.example\r\n",
        PASSED.replace(b"pass", b"none") + b"From: ann@friend.example\r\n",
        PASSED.replace(b"pass", b"passed") + b"From: ann@friend.example\r\n",
        PASSED.replace(b"Results: mx.example", b"Results: mx.evil.example")
        + b"From: ann@friend.example\r\n",
        PASSED.replace(b"friend", b"evil") + b"From: ann@friend.example\r\n",
        PASSED.replace(b"friend.example", b"example") + b"From: ann@friend.example\r\n",
        PASSED + b"From: ann@friend.example, eve@evil.example\r\n",
        PASSED + b"From: ann@friend.example <eve@evil.example>\r\n",
        PASSED + b"From: eve@evil.example\r\nReply-To: ann@friend.example\r\n",
        PASSED + b"\r\nFrom: ann@friend.example\r\n",
        # a sender's text within the results of the local server
        (
            b'Authentication-Results: mx.example; spf=pass smtp.mailfrom="x; dkim=pass header.d='
            b'friend.example"@evil.example\r\n' + HOP + b"From: ann@friend.example\r\n"
        ),
        (
            b"Authentication-Results: mx.example; dkim=fail (as: dkim=pass header.d=friend.example)"
            b" header.d=evil.example\r\n" + HOP + b"From: ann@friend.example\r\n"
        ),
        (
            b"Authentication-Results: mx.example; spf=pass (a (b); "
            b"dkim=pass header.d=friend.example\r\n" + HOP + b"From: ann@friend.example\r\n"
        ),
        (
            b"Authentication-Results: mx.example; spf=pass smtp.mailfrom=x "
            b"smtp.mailfrom=friend.example\r\n" + HOP + b"From: ann@friend.example\r\n"
        ),
        (
            b"Authentication-Results: mx.example; x=y header.d=friend.example\r\n"
            + HOP
            + b"From: ann@friend.example\r\n"
        ),
    ],
)
def test_a_sender_without_proof_is_not_allowed(head):
    """From can be forged, and Authentication-Results contain sender-chosen texts."""
    assert ruled(allow(FRIEND), head=head) is None
    if PASSED not in head:
        assert ruled(allow(FRIEND), head=head, sender="ann@friend.example") is None


def test_without_authserv_ids_no_sender_is_proven():
    """Authentication-Results count only if a listed server wrote them."""
    head = PASSED + b"From: ann@friend.example\r\n"
    assert ruled(allow(FRIEND), head=head, local=LocalHosts()) is None


@pytest.mark.parametrize(
    ("sender", "passed", "fits"),
    [
        ("a.example", "a.example", True),
        ("mail.a.example", "a.example", True),
        ("a.example", "mail.a.example", True),
        ("bad-a.example", "a.example", False),
        ("a.example", "example", False),
        ("example", "a.example", False),
        ("", "", False),
    ],
)
def test_a_pass_fits_the_same_domain_or_one_within(sender, passed, fits):
    """Relaxed alignment, but never by a top-level domain."""
    assert aligned(sender, passed) == fits


@given(st.text(alphabet='\\"();= .\r\n@dkimpassheader', max_size=300))
def test_results_are_read_whatever_is_in_them(value):
    """No input raises, and only a pass passes."""
    for text in (value, "mx; " + value.replace("pass", "fail")):
        assert passed_domains(read_results(text.encode(), ("mx",)) or []) == []


@pytest.mark.parametrize("unit", ['"', '\\"', "(", "dkim=pass ", "header.d=", ";", "@", "<a@b>"])
def test_hostile_values_take_linear_time(unit):
    """Law 4: 300 KB of one thing in A-R and From."""
    value = (unit * (300_000 // len(unit))).encode()
    head = b"Authentication-Results: mx.example; " + value + b"\r\n" + HOP + b"From: " + value
    assert ruled(allow(FRIEND), head=head) is None


def test_an_empty_list_says_nothing():
    """An empty list gives no ruling, whatever the headers contain."""
    assert RuleList().listed("a@b") is None
    assert ruled(AccessLists(), head=b"\xff" * 10) is None
