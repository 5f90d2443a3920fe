"""What programs show of a text is read as they show it: pages, charsets, wrapped lines."""

import base64

import pytest
from support import evasions

from spamnb.engine.scoring import MessageReader
from spamnb.mail import limits
from spamnb.mail.limits import PARTLY
from spamnb.mail.message import read
from spamnb.model.features import Key, extract
from spamnb.model.tokens import TokenLocation, fields, mark_of

WORDS = [f"quickfox{number:02}pills" for number in range(40)]
TEXT = " ".join(WORDS)
TORN = " ".join(f"{word[:2]}<i></i>{word[2:]}" for word in WORDS)
KEY = Key(b"k" * 32)
MANY_TAGS = "<b>x</b>" * 5000


def ids(*found: tuple[TokenLocation, bytes, bytes]) -> set[int]:
    return set(extract(KEY, [list(found)]).ids.tolist())


PAYLOAD = ids((TokenLocation.BODY, b"", TEXT.encode()))
PARTLY_READ = ids((TokenLocation.MARK, b"", mark_of(PARTLY).encode()))


def message(kind: str, body: bytes) -> bytes:
    head = f"{evasions.HEAD}Content-Type: {kind}\nContent-Transfer-Encoding: base64\n\n"
    return head.encode() + base64.encodebytes(body)


def found_in(kind: str, body: bytes) -> set[int]:
    return ids(*fields(read(message(kind, body))))


PAGES = {
    "torn in a page of many tags": f"{MANY_TAGS}<p>{TORN}</p>",
    "torn by comments in a page of many tags": MANY_TAGS + f" {TORN}".replace("<i></i>", "<!---->"),
    "torn in a page of many attributes": f"<p {'a ' * 9000}>{TORN}</p>",
    "declared again": f"<p style='display:none;display:block'>{TEXT}</p>",
    "important": f"<p style='display:block!important;display:none'>{TEXT}</p>",
    "another property": f"<p style='x-display:none'>{TEXT}</p>",
    "a comment in a style": f"<p style='/*display:none*/'>{TEXT}</p>",
    "a string in a style": f"<p style='font-family:\";display:none;\"'>{TEXT}</p>",
    "no value of css": f"<p style='display:none x'>{TEXT}</p>",
    "an attribute overruled": f"<p hidden style='display:block'>{TEXT}</p>",
    "visible within invisible": "<p style='visibility:hidden'><b style='visibility:visible'>"
    + TEXT,
    "a size within none": f"<div style='font-size:0px'><p style='font-size:14px'>{TEXT}</p></div>",
    "a table within no size": f"<div style='font-size:0'><table><td>{TEXT}</table></div>",
    "text beyond its box": f"<div style='height:0'>{TEXT}</div>",
    "a class shown again": "<style>.x{display:none}</style><style>.x{display:block}</style>"
    f"<p class=x>{TEXT}</p>",
    "a class shown by media": "<style>.x{display:none}@media all{.x{display:block}}</style>"
    f"<p class=x>{TEXT}</p>",
    "a class overruled": f"<style>.x{{display:none}}</style>"
    f"<p class=x style='display:block'>{TEXT}",
    "a page coloured by a sheet": f"<style>body{{background:#000}}</style>"
    f"<p style='color:#fff'>{TEXT}",
    "the last colour": f"<p style='color:#fff;color:#000'>{TEXT}</p>",
    "hidden from one maker's programs": f"<p style='mso-hide:all'>{TEXT}</p>",
    "shown by one maker's programs": f"<!--[if mso]><p>{TEXT}</p><![endif]-->",
    "a name with NUL": f"<st\0yle>{TEXT}</style>",
    "a property with NUL": f"<p style='dis\0play:none'>{TEXT}</p>",
    "a sheet with NUL": f"<style>p{{dis\0play:none}}</style><p>{TEXT}</p>",
    "NUL between tags": f"<p>{TEXT}</p>".replace("q", "q\0"),
    "sections": "".join(f"<section>{word}</section>" for word in WORDS),
    "lines of a list": "".join(f"<menu>{word}</menu>" for word in WORDS),
}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_what_a_page_shows_is_its_text(page: str) -> None:
    """Text leaves the body only where it surely is hidden; tags part words as programs do."""
    assert found_in("text/html", page.encode()) >= PAYLOAD


HIDDEN = (
    "<p style='color:red;display:none'>{}</p>",
    "<p style='display:block;display:none!important'>{}</p>",
    "<p style='font-size:0'><b style='color:red'>{}</b></p>",
    "<p style='color:red/* ; * y */;display:none/* z */'>{}</p>",
    "<style>.x{{display:none}} p{{color:red}}</style><p class=x>{}</p>",
)


@pytest.mark.parametrize("page", HIDDEN)
def test_what_is_surely_hidden_is_no_text(page: str) -> None:
    """Hidden words cannot whitewash a message."""
    assert not found_in("text/html", page.format(TEXT).encode()) & PAYLOAD


UNSEEN = "\0\x08\x7f\u200b\u202c\u206a\ufe0f\ufe00\u17b4\u180b\ufffa\U000e0041\U000e0100\U0001d173"


@pytest.mark.parametrize("sign", UNSEEN, ids=ascii)
def test_what_no_program_shows_parts_no_word(sign: str) -> None:
    """Control characters and default ignorables within a word go."""
    torn = " ".join(sign.join((word[:3], word[3:])) for word in WORDS)
    assert found_in("text/plain; charset=utf-8", torn.encode()) >= PAYLOAD


SMALL = str.maketrans("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ")
STYLES = {
    "small capitals": TEXT.translate(SMALL),
    "in black circles": TEXT.translate({97 + n: 0x1F150 + n for n in range(26)}),
    "in black squares": TEXT.translate({97 + n: 0x1F170 + n for n in range(26)}),
    "from right to left": f"\u202e{TEXT[::-1]}\u202c",
    "words from right to left": " ".join(f"\u202e{word[::-1]}\u202c" for word in WORDS),
    "lines from right to left": "\n".join(f"\u202e{word[::-1]}" for word in WORDS),
}


@pytest.mark.parametrize("text", STYLES.values(), ids=STYLES)
def test_styled_letters_and_their_order_are_read_as_shown(text: str) -> None:
    """Letters of a style are plain letters; an override to the left is undone."""
    assert found_in("text/plain; charset=utf-8", text.encode()) >= PAYLOAD


@pytest.mark.parametrize("end", ["=\r", "= \t\r", "=\n", "= \n", "=\r\n"], ids=ascii)
def test_a_soft_line_end_takes_no_text_with_it(end: str) -> None:
    """Mail programs read on after a bare CR, too."""
    head = (
        f"{evasions.HEAD}Content-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\n"
    )
    torn = end.join(TEXT[at : at + 7] for at in range(0, len(TEXT), 7))
    assert ids(*fields(read((head + torn).encode()))) >= PAYLOAD


CHARSETS = (
    ("utf-16", "utf-16-be"), ("utf-16", "utf-16-le"), ("utf-32", "utf-32-be"),
    ("unicode", "utf-16"), ("csUnicode", "utf-16-le"), ("ISO-10646-UCS-2", "utf-16-be"),
    ("unicodeFFFE", "utf-16-be"), ("ISO-10646-UCS-4", "utf-32-be"), ("EBCDIC-CP-US", "cp037"),
    ("IBM01140", "cp1140"), ("cp875", "cp875"), ("utf-8", "utf-16-le"), ("us-ascii", "utf-16-be"),
)  # fmt: skip


@pytest.mark.parametrize(("label", "codec"), CHARSETS)
def test_charsets_of_other_widths_are_read(label: str, codec: str) -> None:
    """Without a charset the zero bytes show byte order and width."""
    assert found_in(f"text/plain; charset={label}", f"\n{TEXT}\n".encode(codec)) >= PAYLOAD


@pytest.mark.parametrize("end", [b"x", b"\x00\xd8"])
def test_a_broken_end_takes_no_text_with_it(end: bytes) -> None:
    """A text that its charset cannot read as a whole is read as far as it goes."""
    raw = f"{TEXT} ".encode("utf-16-le") + end
    assert found_in("text/plain; charset=utf-16le", raw) >= PAYLOAD


@pytest.mark.parametrize("charset", ["utf-16", "utf-7", "cp037"])
def test_a_page_cannot_call_itself_unreadable(charset: str) -> None:
    """A charset that a page names in ASCII reads ASCII as ASCII."""
    page = f"<html><meta charset={charset}><p>\u00e9 {TEXT}</p>"
    assert found_in("text/html", page.encode("latin-1")) >= PAYLOAD


def _folded(text: str) -> str:
    return "\r\n ".join(text[at : at + 5] for at in range(0, len(text), 5))


WRAPPED = {
    "text/plain; format=flowed; DelSp=Yes": " \n".join(
        part.replace(" ", "  ", 1) if part.startswith(" ") else part
        for part in (TEXT[at : at + 5] for at in range(0, len(TEXT), 5))
    ),
    "text/calendar": f"BEGIN:VEVENT\r\nDESCRIPTION:x\\n{_folded(TEXT)}\r\nEND:VEVENT\r\n",
    "text/vcard": f"BEGIN:VCARD\r\nNOTE:x {_folded(TEXT)}\r\nEND:VCARD\r\n",
    "text/enriched": TORN.replace("i>", "bold>"),
    "text/x-amp-html": f"<html amp4email><body>{TORN}</body></html>",
    "text/html charset=utf-8": f"<p>{TORN}</p>",
}


@pytest.mark.parametrize(("kind", "body"), WRAPPED.items(), ids=WRAPPED)
def test_what_wraps_a_text_parts_no_word(kind: str, body: str) -> None:
    """Folded lines, soft line ends and tags are undone by the rules of their type."""
    assert found_in(kind, body.encode()) >= PAYLOAD


SPENT = {
    "references": ("text/html", "<i></i>" * 4100 + "&amp; " * 10_001 + TEXT.replace("q", "&#113;")),
    "letters that swell": ("text/plain; charset=utf-8", "\ufdfa " * 20_000 + TEXT),
    "characters of three bytes": (
        "text/html; charset=big5",
        "\u4e2d" * 120_000 + f"<p>{TEXT}</p>" + "\u4e2d" * 10,
    ),
}


@pytest.mark.parametrize(("kind", "body"), SPENT.values(), ids=SPENT)
def test_what_grows_beyond_a_bound_is_reported(kind: str, body: str) -> None:
    """A bound that is reached after decoding leaves the mark of a message read in part."""
    _, _, charset = kind.partition("charset=")
    found = found_in(kind, body.encode(charset or "ascii"))
    assert found >= PAYLOAD or found >= PARTLY_READ


def test_features_beyond_the_bound_are_reported_of_the_message_that_has_them() -> None:
    """What is left out of a sample of a message's features was not read."""
    salad = " ".join(f"salad{number}" for number in range(limits.FEATURES[0]))
    raws = [message("text/plain", text.encode()) for text in (TEXT, f"{TEXT} {salad}", TEXT)]
    feature_batch = MessageReader(b"k" * 32).feature_batch(raws)
    marked = [
        set(feature_batch.features.ids[feature_batch.features.of(at)].tolist()) >= PARTLY_READ
        for at in range(len(raws))
    ]
    assert marked == [False, True, False]
