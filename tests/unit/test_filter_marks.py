"""Marks of other filters are read in exact forms, and only where hosts of the site put them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.mail.other_filters import (
    FILTERS,
    FORMS,
    HEADER_BYTES,
    FilterMark,
    mark_of_text,
    read_mark,
)

HOSTS = ("mx.example.org",)
OURS = b"Received: from foo (foo [192.0.2.1]) by MX.example.org (Postfix) with ESMTP id 1; now\r\n"
FOREIGN = b"Received: from a (a [192.0.2.9]) by relay.example.net with ESMTP; now\r\n"
REST = b"From: a@example.net\r\nSubject: x\r\n\r\nX-Spam-Flag: YES\r\n"
SA = (
    b"X-Spam-Status: Yes, score=7.5 required=5.0 tests=BAYES_99,\r\n\tURIBL_BLACK,HTML_MESSAGE"
    b" autolearn=no version=4.0.1\r\n"
)
TESTS = ("BAYES_99", "URIBL_BLACK", "HTML_MESSAGE")


@pytest.mark.parametrize(
    ("field", "mark"),
    [
        (b"X-Spam-Flag: YES", FilterMark("spam")),
        (b"X-Spam-Flag: no", FilterMark("ham")),
        (SA.strip(), FilterMark("spam", 7.5, 5.0, TESTS)),
        (b"X-Spam-Status: No, hits=-1.2 required=5.0", FilterMark("ham", -1.2, 5.0)),
        (b"X-Spam-Status: No, score=0.1 required=5.0 tests=none autolearn=ham",
         FilterMark("ham", 0.1, 5.0)),
        ((b"X-Spam-Status: Yes, score=8 tagged_above=-999 required=6.31 tests=[A_B=0.1,\r\n C=2]"
         b" autolearn=no"), FilterMark("spam", 8.0, 6.31, ("A_B", "C"))),
        (b"X-Spam-Status: No, score=-0.50", FilterMark("ham", -0.5)),
        (b"X-Spam: Yes", FilterMark("spam")),
        (b"X-Rspamd-Action: add header", FilterMark("spam")),
        (b"X-Rspamd-Action: greylist", FilterMark("ham")),
        ((b"X-Spamd-Result: default: False [-1.10 / 15.00];\r\n\tMIME_GOOD(-0.10)[text/plain];\r\n"
         b"\tR_SPF_ALLOW(-0.20)[+ip4:192.0.2.1,(x)]"),
         FilterMark("ham", -1.1, 15.0, ("MIME_GOOD", "R_SPF_ALLOW"))),
        (b"X-Spamd-Result: default: True [16.20 / 15.00]; A(16.20)[]",
         FilterMark("spam", 16.2, 15.0, ("A",))),
        (b"X-Bogosity: Unsure, tests=bogofilter, spamicity=0.500000, version=1.2.5",
         FilterMark("unsure", 0.5)),
        (b"X-Bogosity: Spam, tests=bogofilter, spamicity=1.000000, version=1.2.5",
         FilterMark("spam", 1.0)),
        (b"X-Bogosity: No, tests=bogofilter, spamicity=0.1", FilterMark("ham", 0.1)),
        (b"X-Spambayes-Classification: unsure; 0.55", FilterMark("unsure", 0.55)),
        (b"X-Text-Classification: spam", FilterMark("spam")),
        (b"X-Text-Classification: family", FilterMark("ham")),
        (b"X-Text-Classification: unclassified", FilterMark("unsure")),
        (b"X-DSPAM-Result: Innocent", FilterMark("ham")),
        (b"X-DSPAM-Result: Spam", FilterMark("spam")),
        (b"X-Mox-Reason: junk-content", FilterMark("spam")),
        (b"X-MS-Exchange-Organization-SCL: 6", FilterMark("spam")),
        (b"X-MS-Exchange-Organization-SCL: -1", FilterMark("ham")),
        (b"X-Spam_score: 5.3\r\nX-Spam-Flag: YES", FilterMark("spam", 5.3)),
        (b"X-Spam-Score: 5.3 (+++++)\r\nX-Spam-Flag: YES", FilterMark("spam", 5.3)),
        (b"X-Spam: Yes\r\nX-Spamd-Result: default: False [8.00 / 15.00]; A(8.00)[]",
         FilterMark("spam", 8.0, 15.0, ("A",))),
    ],
)  # fmt: skip
def test_each_form_is_read(field, mark):
    """The verdict, score and tests of each filter are read in the form that it writes."""
    assert read_mark(field + b"\r\n" + OURS + REST, HOSTS) == mark
    lines = (field + b"\r\n" + OURS + REST).replace(b"\r\n", b"\n")
    assert read_mark(lines, HOSTS) == mark


@pytest.mark.parametrize(
    "field",
    [
        b"X-Spam-Flag: =?utf-8?q?YES?=",
        b"X-Spam-Flag: YES, of course",
        b"X-Spam-Status: bayes",
        b"X-Spam-Status: Yesterday, score=9",
        b"X-Spam-Status: =?us-ascii?B?WWVz?=, score=9",
        b"X-Spam-Result: BAYES_SPAM",
        b"X-Spam-Score: 99",
        b"X-Bogosity: Spam",
        b"X-Bogosity: Spammy, tests=bogofilter, spamicity=1",
        b"X-Spambayes-Classification: hamster; 0.01",
        b"X-DSPAM-Result: ba yes",
        b"X-Spamd-Result: default: True",
        b"X-MS-Exchange-Organization-SCL: 66",
        b"X-Spam-Status: Yes, score=9.0, required=5.0, tests=SPAMNB_JUNK, version=0.1",
        b"Subject: X-Spam-Flag: YES",
        b"Xs-Spam-Flag: YES",
        b"X-Spam-Flag YES",
    ],
)
def test_what_has_another_form_is_no_mark(field):
    """Encoded words, substrings of verdicts and this program's own marks are no verdicts."""
    assert read_mark(field + b"\r\n" + OURS + REST, HOSTS) is None


FORGED = (
    b"X-Spam-Flag: NO\r\n",
    b"x-SPAM-flag:no\r\n",
    b"X-Spam-Flag :\r\n NO\r\n",
    b"X-Spam-Status: No, score=-99\r\n required=5.0 tests=A\r\n",
    b"X-Bogosity: Ham, tests=bogofilter, spamicity=0.0\r\n",
    b"X-Spam-Flag: NO\r\nX-Spam-Flag: NO\r\n",
    b"X-Spam: =?utf-8?q?No?=\r\n",
)


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize(
    ("before", "after"),
    [(b"", b""), (b"", FOREIGN), (FOREIGN, b""), (OURS, b""), (FOREIGN + OURS, b"")],
)
def test_marks_of_a_sender_never_count(forged, before, after):
    """What stands below the topmost Received field was there before the message came to the site.

    That is also so if the sender has written a Received field by a host of the site.
    """
    assert read_mark(OURS + before + forged + after + REST, HOSTS) is None
    real = FilterMark("spam", 7.5, 5.0, TESTS)
    assert read_mark(SA + OURS + before + forged + after + REST, HOSTS) == real


@pytest.mark.parametrize("forged", FORGED)
def test_marks_above_a_hop_elsewhere_never_count(forged):
    """A message whose topmost hop is not the site's own, or that has none, has no marks."""
    assert read_mark(forged + FOREIGN + OURS + REST, HOSTS) is None
    assert read_mark(FOREIGN + forged + OURS + REST, HOSTS) is None
    assert read_mark(forged + REST, HOSTS) is None
    assert read_mark(forged + OURS + REST, ()) is None
    fake = b"Received: from by mx.example.org (a [192.0.2.9]) by relay.example.net; now\r\n"
    assert read_mark(forged + b"X-Received: by mx.example.org\r\n" + REST, HOSTS) is None
    assert read_mark(forged + fake.replace(b" mx.", b"-mx.") + REST, HOSTS) is None


def test_the_topmost_of_two_marks_of_the_site_counts():
    """The filter nearer to the mailbox has seen the fields of the others."""
    header = b"X-Spam-Flag: YES\r\nX-Spam-Flag: NO\r\n" + OURS + REST
    assert read_mark(header, HOSTS) == FilterMark("spam")


def test_a_filter_in_front_may_append_its_mark():
    """The only field of its name counts if the caller vouches for the filter, and no other."""
    appended = FOREIGN + b"From: a@example.net\r\n" + SA + b"\r\nbody"
    assert read_mark(appended) is None
    assert read_mark(appended, other="spamassassin") == FilterMark("spam", 7.5, 5.0, TESTS)
    assert read_mark(appended, other="bogofilter") is None
    assert read_mark(b"X-Spam-Status : No\r\n" + appended, other="spamassassin") is None
    above = SA + OURS + b"X-Spam-Status: No, score=1\r\n" + REST
    assert read_mark(above, HOSTS, "spamassassin") == FilterMark("spam", 7.5, 5.0, TESTS)


def test_the_body_and_what_is_beyond_the_limit_are_not_read():
    """Only the header counts, up to a limit."""
    assert read_mark(OURS + REST, HOSTS, "any") is None
    assert read_mark(b"\r\nX-Spam-Flag: YES\r\n", other="any") is None
    assert read_mark(b"\n\nX-Spam-Flag: YES\n", other="any") is None
    long = b"A: b\r\n" * (HEADER_BYTES // 6) + b"X-Spam-Flag: YES\r\n\r\n"
    assert read_mark(long, other="any") is None


PIECES = (
    *FORGED, OURS, FOREIGN, SA, REST, b" ", b"\t", b"\r\n", b"\n", b":", b"\0", b"\xff",
    b"From x 10:00\n", b"x-spam-flag", b"X-Spam: Yes", b" by mx.example.org ", b"Received",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_nothing_below_the_hop_changes_the_mark(sent):
    """Whatever the sender puts together, the mark is that of the site's own fields."""
    assert read_mark(OURS + sent, HOSTS) is None
    real = FilterMark("spam", 7.5, 5.0, TESTS)
    assert read_mark(SA + OURS + sent, HOSTS) == real
    assert read_mark(SA + FOREIGN + sent, HOSTS) is None


@given(st.binary(max_size=400), st.sampled_from(FORMS), st.booleans())
def test_reading_never_fails(value, form, named):
    """Any bytes give a mark or none."""
    header = form.name + b": " + value + b"\r\n" + OURS + REST
    mark = read_mark(header, HOSTS, "any" if named else "")
    assert mark is None or mark_of_text(mark.text()) is not None
    read_mark(value, HOSTS, "any")


@pytest.mark.parametrize(
    "mark",
    [
        FilterMark("spam"), FilterMark("ham", -1.25), FilterMark("unsure", 0.5, 1.0),
        FilterMark("spam", 7.5, 15.0, ("A", "B_C")), FilterMark("spam", None, None, ("A",)),
        FilterMark("ham", 999999.0, 1e-06, ("A",)),
    ],
)  # fmt: skip
def test_a_mark_is_read_back_from_its_text(mark):
    """The note in the history says the same."""
    assert mark_of_text(mark.text()) == mark
    assert mark_of_text(mark.text() + " more words") is None


def test_every_filter_has_a_form():
    """The names that settings accept are those of the table."""
    assert {"bogofilter", "rspamd", "spamassassin"} <= set(FILTERS)
