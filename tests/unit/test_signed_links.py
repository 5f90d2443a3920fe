"""Signed links: only what the server has signed is a link, and only for its time."""

import stat
import threading
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest

from spamnb.console.site import LIFE_S, ApiError, SignedLink, SignedLinks

NOW = 1_800_000_000.0
LINK = SignedLink("20260101T000000000000-01234567", "alice@example.org")


@pytest.fixture
def links(tmp_path):
    return SignedLinks(tmp_path)


def status_of(links, text, now=NOW):
    with pytest.raises(ApiError) as caught:
        links.read(text, now)
    return caught.value.status


def test_a_link_is_good_for_its_time(links):
    """It says what it was made for, until its end."""
    text = links.make(LINK, NOW)
    assert text.isascii()
    assert links.read(text, NOW) == LINK
    assert links.read(text, NOW + LIFE_S - 1) == LINK
    assert status_of(links, text, NOW + LIFE_S) == 410
    assert SignedLinks(links._folder.parents[1]).read(text, NOW) == LINK
    assert links.make(LINK._replace(user="bob@example.org"), NOW) != text


def test_a_changed_link_is_not_valid(links):
    """Each byte counts: version, key, end, message, recipient and signature."""
    text = links.make(LINK, NOW)
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for at in range(len(raw)):
        for bit in (1, 128):
            changed = bytearray(raw)
            changed[at] ^= bit
            assert status_of(links, urlsafe_b64encode(changed).rstrip(b"=").decode()) == 404, at
    for cut in (text[:-1], text[1:], text[:20], "", "A", text + "A", text + "=", text + "\n"):
        assert status_of(links, cut) == 404, cut
    for other in ("x" * 5_000, "é", "../../x", text.replace(text[0], "%"), "\0", text.upper()):
        assert status_of(links, other) == 404, other
    bob = raw.replace(b"alice@", b"bob@")
    assert status_of(links, urlsafe_b64encode(bob).rstrip(b"=").decode()) == 404


def test_a_link_of_another_key_is_not_valid(links, tmp_path):
    """Links of another home, and of keys that were deleted, are none."""
    text = links.make(LINK, NOW)
    other = SignedLinks(tmp_path / "other")
    other.make(LINK, NOW)
    assert status_of(other, text) == 404
    for path in links._folder.iterdir():
        path.unlink()
    assert status_of(links, text) == 404
    links.make(LINK, NOW)
    assert status_of(links, text) == 404


def test_a_link_is_for_one_recipient(links):
    """Without a recipient it would be for all of them."""
    with pytest.raises(ValueError, match="one recipient"):
        links.make(LINK._replace(user=""), NOW)


def test_keys_are_drawn_each_month_and_deleted(links):
    """A key is kept as long as its links live; its file is private."""
    month = 31 * 86_400
    texts = [links.make(LINK, NOW + at * month) for at in range(14)]
    names = sorted(path.name for path in links._folder.iterdir())
    assert len(names) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in links._folder.iterdir())
    assert links.read(texts[-1], NOW + 13 * month) == LINK
    assert status_of(links, texts[0], NOW + 13 * month) == 404


def test_links_that_are_made_at_a_time_have_one_key(links):
    """Two processes that draw the first key of a month do not make each other's links invalid."""
    texts, home = [], links._folder.parents[1]

    def make():
        texts.append(SignedLinks(home).make(LINK, NOW))

    makers = [threading.Thread(target=make) for _ in range(8)]
    for one in makers:
        one.start()
    for one in makers:
        one.join()
    assert len(set(texts)) == 1
    assert links.read(texts[0], NOW) == LINK
