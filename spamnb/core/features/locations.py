"""The locations of words: the parts of a message in which a word or a line occurs.

The same word at two locations is two features. A location in `SHAPES` has lines instead, each of
which is one feature.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class TokenLocation(IntEnum):
    """The part of a message where a word was found. The numbers are on disk: never reuse one."""

    BODY = 1  # the visible text
    SUBJECT = 2  # the strongest twenty words of most messages
    URL = 3  # hosts and paths of links, which spam cannot leave out
    FROM = 4  # name, address and domain of the author
    REPLY = 5  # Reply-To, Sender: the addresses for answers besides the author's
    TO = 6  # To and Cc
    RECEIVED = 7  # hosts and nets of the transport, without times and queue ids
    ID = 8  # hosts of Message-ID, References, In-Reply-To
    CONTENT = 9  # MIME headers, without the random part of boundaries
    AUTH = 10  # authentication results that the local mail server wrote
    # 11 was the names of all headers; their order tells more
    HEADER = 12  # every other header, by its name
    PART = 13  # type, charset, encoding and disposition of each part
    FILE = 14  # names of attachments
    HIDDEN = 15  # invisible text; kept apart, so that it cannot change the score of the body
    MARKUP = 16  # names of html tags
    MARK = 17  # oddities and other facts that the reader found, under names of this program
    INNER = 18  # headers of a message inside
    DIGEST = 19  # attachments by content
    WORD = 20  # plain text documents
    SELF = 21  # the message's own digest, for corrections that concern this message alone
    # Shapes: each line is one feature. The number is 1-AUC without the shape; .0371 with all
    # (0033).
    HEADER_ORDER = 22  # every mail program has its own order of headers: .0383
    ID_SHAPE = 23  # every mail program has its own form of Message-ID: .0379
    FROM_SHAPE = 24  # how the author's name and address are written: .0375
    RECEIVED_SHAPE = 25  # every server has its own form of Received lines: .0372
    HOP = 26  # names and nets of the clients in Received lines: .0373
    AGREEMENT = 27  # whether hops, reply address and links are of the sender's domain: .0412
    SENDER = 28  # whether display name and recipient occur elsewhere: .0377
    ADDRESS_PART = 29  # four bytes of the author's address: .0357, but the best on newer mail
    LINK_SHAPE = 30  # form of hosts and paths, which a campaign varies only in part: .0372
    STYLE = 31  # lines, quotes, capitals and signs of the text, in steps: .0372
    GREETING = 32  # first two words and last word: .0372


WRITTEN = frozenset(
    {
        *(TokenLocation.BODY, TokenLocation.SUBJECT, TokenLocation.URL, TokenLocation.WORD),
        *(TokenLocation.ADDRESS_PART, TokenLocation.LINK_SHAPE, TokenLocation.STYLE),
        TokenLocation.GREETING,
    }
)
"""Group 0: what the author wrote; all else is group 1, how it was sent. Each is averaged and
tempered on its own: 1-AUC 0.050 % against 0.057 % with one group; three were worse (decision
0001)."""

SHAPES = frozenset(
    {
        *(TokenLocation.HEADER_ORDER, TokenLocation.ID_SHAPE, TokenLocation.FROM_SHAPE),
        *(TokenLocation.RECEIVED_SHAPE, TokenLocation.HOP, TokenLocation.AGREEMENT),
        *(TokenLocation.SENDER, TokenLocation.ADDRESS_PART, TokenLocation.LINK_SHAPE),
        *(TokenLocation.STYLE, TokenLocation.GREETING),
    }
)
"""Locations whose texts are not split into words: each line is one feature."""
ROUGH = frozenset(
    {
        *((TokenLocation.ID_SHAPE, b"local part"), (TokenLocation.ID_SHAPE, b"host")),
        *((TokenLocation.FROM_SHAPE, b"header"), (TokenLocation.FROM_SHAPE, b"local part")),
        *((TokenLocation.HOP, b"HELO"), (TokenLocation.HOP, b"reverse DNS")),
        *((TokenLocation.LINK_SHAPE, b"host"), (TokenLocation.LINK_SHAPE, b"path")),
        (TokenLocation.RECEIVED_SHAPE, b""),
    }
)
"""Of these, by location and name, the lines of which only the rough shape is a feature."""

Field = tuple[TokenLocation, bytes, bytes]
"""A piece of text: location, name, text. The name distinguishes headers that share the location
HEADER, and kinds of lines of one shape; the text is UTF-8 in its original case. A plain tuple,
because a message has fifty of them."""
