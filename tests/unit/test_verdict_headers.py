"""The added header lines: their content, removal of forged copies, separation from the message."""

import re
from email.parser import BytesParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.scanning import as_delivered

from spamnb.mail.message import read
from spamnb.model.costs import Costs, thresholds
from spamnb.model.verdict import Clue
from spamnb.policy.headers import (
    COLUMNS,
    REASONS,
    ScanVerdict,
    add_fields,
    add_to_message,
    as_block,
    header_end,
    is_own,
    junk_threshold,
    remove_forged,
    scanned_fields,
    score_of,
    signature_fields,
    unscanned_fields,
)

JUNK = junk_threshold(Costs())
SIGNATURE = "s" + "a2" * 13
NAMES = (
    *("X-Spam-Flag", "X-Spam-Status", "X-Spam-Score", "X-Spam-Level"),
    *("X-Spamnb-Verdict", "X-Spamnb-Clues", "X-Spamnb-Signature", "X-Spamnb-Redirect"),
)


def verdict(**more):
    given = {"label": "spam", "probability": 0.9987, "log_odds": 8.0, "decision": "junk"}
    return ScanVerdict(**(given | {"signature": SIGNATURE} | more))


def block_of(verdict, **more):
    return as_block(scanned_fields(verdict, JUNK, **more))


ADDED = scanned_fields(
    verdict(clues=(Clue("subject", "pills", 2.5),)), JUNK, redirect="junk@a.example"
)
BLOCK = as_block(ADDED)


def replace_headers(header, added, tag=b""):
    """The header section as the relay sends it."""
    return add_fields(remove_forged(header), added, tag)


def stuffed(raw):
    """A message in wire form."""
    return re.sub(rb"(?m)^\.", b"..", raw)


def unstuffed(wire):
    """A message as its receiver understands it (RFC 5321 4.5.2)."""
    return re.sub(rb"(?m)^\.", b"", wire)


def sent(wire, added=ADDED, tag=b""):
    """What the next hop gets for a message in wire form."""
    end = header_end(wire)
    end = len(wire) if end < 0 else end
    return replace_headers(wire[:end], added, tag) + wire[end:]


def headers_of(raw):
    """The header fields as Python's own reader sees them, unfolded."""
    items = BytesParser().parsebytes(raw, headersonly=True).items()
    return [(name, re.sub(r"[\r\n]+", "", str(value))) for name, value in items]


OURS = headers_of(BLOCK)


# --- where the header ends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", -1),
        (b"A: b", -1),
        (b"A: b\r\n", -1),
        (b"A: b\r\n\r", -1),
        (b"A: b\r\n\r\nbody", 8),
        (b"A: b\n\nbody\r\n\r\n", 6),
        (b"A: b\n\r\nbody", 7),
        (b"\r\nbody\r\n\r\n", 2),
        (b"\nbody", 1),
        (b"A: b\r\n \r\n\r\n", 11),
    ],
)
def test_the_header_ends_after_its_blank_line(data, end):
    """CRLF or LF, also when there is no field at all; a line of blanks is no blank line."""
    assert header_end(data) == end
    assert header_end(bytearray(data)) == end


@given(st.lists(st.sampled_from([b"A: b", b"\r\n", b"\n", b"\r", b" c", b"x"])), st.data())
def test_a_search_goes_on_where_it_stopped(parts, data):
    """Bytes that come in any portions give the end that the whole gives."""
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    if header_end(whole[:cut]) < 0:
        assert header_end(whole, cut) == header_end(whole)
    else:
        assert header_end(whole[:cut]) == header_end(whole)


# --- forged copies -------------------------------------------------------------------------------

FORGED = [
    b"X-Spam-Flag: NO\r\n",
    b"x-spam-STATUS: No, score=-99\r\n",
    b"X-Spam-Score : -5\r\n",
    b"X-Spam-Level\t \t:\r\n",
    b"X-Spamnb-Signature: sxyz\r\n more of it\r\n\tand more\r\n",
    b"X-Spamnb-Anything: x\r\n",
    b"X-Spam-Flag\r\n : NO\r\n",
    b".X-Spam-Flag: NO\r\n",
    b"X-Spam-Flag: a\r\n. joined when the dot is gone\r\n",
    b"X-Spam\x00-Flag: NO\r\n",
    b"X-Spam-Flag\xa0: NO\r\n",
    b"X_Spam_Flag: NO\r\n",
    b"\x0bX-Spam-Flag: NO\r\n",
    b"X-Spam-Flag: NO\n",
    b"X-Spam-Flag: NO\r",
]


@pytest.mark.parametrize("forged", FORGED)
def test_forged_copies_are_removed_and_nothing_else(forged):
    """Every spelling that some reader accepts as an added name is removed, with continuations."""
    before, after = b"Received: x\r\n\tfolded\r\nA: b\r\n", b"Subject: x\r\nC: d\r\n\r\n"
    assert remove_forged(before + forged + after) == before + after
    assert remove_forged(forged + after) == after
    assert remove_forged(before + forged) == before


@pytest.mark.parametrize(
    "honest",
    [
        b"X-Spam-Report: by another filter\r\n",
        b"X-Spam-Checker-Version: 4.0\r\n",
        b"Subject: about X-Spam-Flag: YES\r\n",
        b"Subject: about\r\n X-Spam-Flag: YES\r\n",
        b"..X-Spam-Flag: a name that begins with a dot\r\n",
        b"X-Spam-Flag has no colon\r\n",
        b"Not-X-Spam-Flag: NO\r\n",
    ],
)
def test_headers_of_other_filters_stay(honest):
    """Lines of other filters and mere mentions stay, byte for byte."""
    header = b"A: b\r\n" + honest + b"\r\n"
    assert remove_forged(header) == header


# --- nothing joins, nothing changes --------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *(b"From ann@a.example Mon Jan 1 10:00:00 2026\r\n", b">From ann\r\n", b" ", b"\t", b". "),
        *(b"..", b".From x\r\n", b". : x\r\n", b".: x\r\n", b"Sub\r\n ject: x\r\n", b"\xff\r\n"),
        *(b"Subject\r\n : x\r\n", b"Subject: hello\r\n", b"Message-ID: <1@a.example>\r\n"),
        *(b"no field\r\n", b"\r\n", b"\x00", b"A" * 999 + b": x\r\n", b"<p>x</p>\r\n"),
        *(b"Content-Type: text/html\r\n", *FORGED[:13]),
    ]
)  # fmt: skip
_BYTES = st.binary(max_size=40).map(lambda raw: re.sub(rb"\r\n|\r|\n", b"\r\n", raw))
_MESSAGES = st.lists(_PIECES | _BYTES, max_size=8).map(b"".join)


def crlf(wire):
    """A message in wire form: each line ends in CRLF, no line is a single dot."""
    wire = re.sub(rb"\r\n|\r|\n", b"\r\n", wire)
    wire += b"" if wire.endswith(b"\r\n") or not wire else b"\r\n"
    return re.sub(rb"(?m)^\.\r\n", b"..\r\n", wire)


@given(_MESSAGES)
@example(b". : x\r\n\r\n")
@example(b". . X-Spam-Flag: NO\r\n")
@example(b"\xff\r\n. X-Spam-Flag: NO\r\n")
@example(b".\tx\r\n")
@example(b" X-Spam-Flag: NO\r\nSubject: x\r\n\r\n")
@example(b"")
def test_no_line_of_a_message_joins_our_values(message):
    """Python's reader finds the added lines first and unchanged, and no other copy of them."""
    wire = crlf(message)
    got = headers_of(unstuffed(sent(wire)))
    if re.match(rb"(\.?From .*\r\n)*\.?>From ", remove_forged(wire)):
        return  # no header at all for Python's reader, with or without us
    assert got[: len(OURS)] == OURS
    names = [name.lower() for name, _ in got[len(OURS) :]]
    assert not {name.lower() for name in NAMES} & set(names)


@given(_MESSAGES)
@example(b"From x\r\n Subject: x\r\n\r\n")
@example(b"Subject: x\r\njunk\r\n.X-Spam-Flag: NO\r\n\r\nbody")
@example(b".: x\r\n")
@example(b"A: b\r\n..X-Spam-Flag: NO\r\n\r\nbody")
def test_a_message_is_the_same_before_and_after(message):
    """Law 8: a message has one digest at the relay and in the mailbox."""
    wire = crlf(message)
    before, after = read(as_delivered(unstuffed(wire))), read(unstuffed(sent(wire)))
    assert before.digest == after.digest
    assert before.headers == after.headers
    assert add_to_message(unstuffed(wire), ADDED) == unstuffed(sent(wire))


@given(_MESSAGES)
def test_what_our_block_was_put_before_is_there_unchanged(message):
    """Without the block and its blank line, the message without forged copies remains."""
    wire = crlf(message)
    end = header_end(wire)
    end = len(wire) if end < 0 else end
    got, clean = replace_headers(wire[:end], ADDED), remove_forged(wire[:end])
    assert got.count(BLOCK) == 1
    before, after = got.split(BLOCK)
    assert before + after == clean or before + after.removeprefix(b"\r\n") == clean
    assert replace_headers(wire[:end], ()) == clean
    left = iter(wire[:end].split(b"\r\n"))
    assert all(line in left for line in clean.split(b"\r\n"))  # lines went, none came or moved


@pytest.mark.parametrize(
    ("before", "joint", "rest"),
    [
        (b"", b"\r\n", b"Sub\r\n: x\r\n\r\n"),
        (b"", b"\r\n", b"Sub \r\n.: x\r\n\r\n"),
        (b"", b"", b"Sub \r\n. : x\r\n\r\n"),
        (b"", b"", b".>Fro: x\r\n\r\n"),
        (b"", b"\r\n", b"From ann"),
        (b"From x\r\n>From x\r\n", b"", b">Fro: y\r\n\r\n"),
        (b"From x\r\n", b"\r\n", b".From"),
    ],
)
def test_the_block_stands_behind_mbox_lines_and_before_all_else(before, joint, rest):
    """A line that only begins like an mbox line or a field is neither."""
    assert replace_headers(before + rest, ADDED) == before + BLOCK + joint + rest


@given(_MESSAGES)
def test_stamping_twice_leaves_one_block(message):
    """The lines added at one hop are removed at the next."""
    once = sent(crlf(message))
    assert sent(once) == once


@pytest.mark.parametrize("size", [10_000, 300_000])
@pytest.mark.parametrize("unit", [b"x", b"\r\n ", b"x-spam", b" ", b"\r", b".", b"From \n"])
def test_hostile_headers_take_linear_time(unit, size):
    """Law 4: a header of 300 KB of any one thing takes milliseconds, not minutes."""
    header = unit * (size // len(unit)) + b"X-Spam-Flag: NO\r\n\r\n"
    assert len(replace_headers(header, ADDED, b"[SPAM]")) < 3 * size + len(BLOCK)


# --- the subject ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "tagged"),
    [
        (b"Subject: a\r\n\r\n", b"Subject: [SPAM] a\r\n\r\n"),
        (b"A: b\r\nsubject:a\r\n\r\n", b"A: b\r\nsubject: [SPAM] a\r\n\r\n"),
        (b"Subject:\r\n a\r\n\r\n", b"Subject: [SPAM] \r\n a\r\n\r\n"),
        (b"Subject: =?utf-8?q?=C3=A9?=\r\n\r\n", b"Subject: [SPAM] =?utf-8?q?=C3=A9?=\r\n\r\n"),
        (b"A: b\r\n\r\n", b"Subject: [SPAM]\r\nA: b\r\n\r\n"),
        (b"\r\n", b"Subject: [SPAM]\r\n\r\n"),
        (b" a\r\nSubject: b\r\n", b"Subject: [SPAM]\r\n\r\n a\r\nSubject: b\r\n"),
        (b"Subject: a\r\nSubject: b\r\n", b"Subject: [SPAM] a\r\nSubject: [SPAM] b\r\n"),
        (b"A: b\r\njunk\r\nSubject: c\r\n", b"Subject: [SPAM]\r\nA: b\r\njunk\r\nSubject: c\r\n"),
    ],
)
def test_the_tag_stands_before_the_subject(header, tagged):
    """Every subject is tagged, a missing one is made, and nothing else moves."""
    assert (
        replace_headers(header, (("X-Spam-Flag", "YES"),), b"[SPAM] ")
        == b"X-Spam-Flag: YES\r\n" + tagged
    )


# --- the added lines --------------------------------------------------------------------------


def test_the_block_says_what_was_promised():
    """The names and values that people and programs rely on."""
    block = block_of(verdict(log_odds=JUNK + 2.34), version="0.1.0")
    assert dict(headers_of(block)) == {
        "X-Spam-Flag": "YES",
        "X-Spam-Status": "Yes, score=7.3, required=5.0, tests=SPAMNB_JUNK, version=0.1.0",
        "X-Spam-Score": "7.3",
        "X-Spam-Level": "*******",
        "X-Spamnb-Verdict": "junk; label=spam; p=0.9987",
        "X-Spamnb-Signature": SIGNATURE,
    }


def test_five_is_the_line_to_junk():
    """The score is 5 where junk begins in the cost table, and rises with the log-odds."""
    costs = Costs()
    edge = next(edge for edge in thresholds(costs) if edge.decision == "junk")
    assert junk_threshold(costs) == edge.log_odds
    assert score_of(verdict(log_odds=edge.log_odds), JUNK) == 5.0
    assert score_of(verdict(log_odds=edge.log_odds - 3, decision="unsure"), JUNK) == 2.0
    assert score_of(verdict(log_odds=1e9), JUNK) == 999.0
    zero = score_of(verdict(log_odds=JUNK - 5.04, decision="deliver"), JUNK)
    assert str(zero) == "0.0", "no sign"


@pytest.mark.parametrize("decision", ["deliver", "unsure", "junk", "reject"])
@given(log_odds=st.floats(allow_nan=False))
def test_flag_status_score_and_level_agree(decision, log_odds):
    """The four lines agree, whatever made the decision."""
    block = block_of(verdict(decision=decision, log_odds=log_odds, reason="allow"))
    fields = dict(headers_of(block))
    yes = decision in ("junk", "reject")
    score = float(fields["X-Spam-Score"])
    assert fields["X-Spam-Flag"] == ("YES" if yes else "NO")
    assert fields["X-Spam-Status"].startswith("Yes, " if yes else "No, ")
    assert (score >= 5.0) == yes
    stars = fields["X-Spam-Level"]
    assert stars == "*" * min(50, max(0, int(score)))
    assert fields["X-Spamnb-Verdict"].endswith("; reason=allow")


def test_where_no_label_is_spam_there_is_no_score():
    """Without a spam label the score is 0, unless a list decides junk."""
    assert score_of(verdict(log_odds=float("-inf"), decision="deliver"), JUNK) == 0.0
    assert score_of(verdict(log_odds=float("-inf"), decision="junk"), JUNK) == 5.0


def test_costs_under_which_nothing_is_junk_give_a_score_all_the_same():
    """If no message can be junk, scores stay below 5."""
    costs = Costs(unsure=(0.0, 1.0), junk=(1e300, 1.0), reject=(1e300, 1.0))
    assert junk_threshold(costs) == float("inf")
    assert score_of(verdict(decision="deliver"), junk_threshold(costs)) == -999.0


@given(
    st.lists(
        st.builds(Clue, st.sampled_from(["subject", "body"]), st.text(), st.floats(-99, 99)),
        max_size=20,
    ),
    st.text(alphabet="ab@. ", max_size=300),
)
def test_our_block_is_plain_whatever_the_clues(clues, redirect):
    """Lines are ASCII, CRLF, folded, and contain no sender's text that a parser interprets."""
    block = block_of(verdict(clues=tuple(clues)), redirect=redirect, version="0.1.0")
    assert block.isascii()
    assert block.endswith(b"\r\n")
    lines = block.split(b"\r\n")[:-1]
    assert not any(b"\r" in line or b"\n" in line for line in lines)
    assert all(len(line) <= COLUMNS or len(line.split()) < 3 for line in lines)
    assert all(re.match(rb"X-Spam(nb)?-[A-Z][a-z]+:|[ ]\S", line) for line in lines)
    assert b"=?" not in block
    assert {name for name, _ in headers_of(block)} <= set(NAMES)


def test_an_unscanned_message_says_why_from_a_table():
    """An unknown reason is written as a fault, so no internal text leaks."""
    for reason in REASONS:
        field = b"X-Spamnb-Verdict: unscanned; reason=" + reason.encode()
        assert as_block(unscanned_fields(reason)) == field + b"\r\n"
    ((_, value),) = unscanned_fields("/var/lib/spamnb: no space\r\nX: y")
    assert value == "unscanned; reason=fault"


def test_an_observed_message_has_its_signature_alone():
    """Observe mode adds one line, and none without a history entry."""
    assert signature_fields(SIGNATURE) == (("X-Spamnb-Signature", SIGNATURE),)
    assert signature_fields("") == ()


def test_a_milter_can_add_and_remove_the_fields_one_by_one():
    """Each field is a pair that is added as it is, and each is one that a later hop removes."""
    clues = tuple(Clue("body", "word", 1.0) for _ in range(9))
    fields = scanned_fields(verdict(clues=clues), JUNK, redirect="junk")
    assert dict(fields)["X-Spamnb-Clues"].count("\n ") >= 1
    assert as_block(fields).count(b"\r\nX-") == len(fields) - 1
    assert all(is_own(name.encode()) for name, _ in fields)
    assert is_own(b"x_spam-FL AG")
    assert not is_own(b"Subject")
