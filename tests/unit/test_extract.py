"""Features: limits of words, and ids that collide only for those with the key."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest

from spamnb.mail.confusables import plain
from spamnb.model import features
from spamnb.model.features import (
    CUT_BYTES,
    MAX_BYTES,
    SEEDS_KEPT,
    Key,
    distinct,
    extract,
    join_pieces,
)
from spamnb.model.tokens import ROUGH, SHAPES, WRITTEN, TokenLocation

SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))
BODY = TokenLocation.BODY


def fields(*texts, location=BODY, name=b""):
    return [(location, name, text if isinstance(text, bytes) else plain(text)) for text in texts]


def read(*messages, secret=SECRET):
    return extract(Key(secret), [fields(*one) for one in messages])


def texts(text, location=BODY):
    """The words of a text in readable form, in their order."""
    found = extract(Key(SECRET), [fields(text, location=location)])
    return sorted(found.word(row)[1].decode() for row in found.of(0))


# --- ids -----------------------------------------------------------------------------------


def test_numbers_in_words_all_differ():
    """A million and a half words that count up have as many ids."""
    text = b" ".join(b"w%d" % number for number in range(100, 1_500_100))
    assert len(read([text]).ids) == 1_500_000


def thue_morse(order):
    """A word and its complement: equal under every polynomial modulo 2^64 once they are long."""
    word = [0]
    for _ in range(order):
        word += [1 - letter for letter in word]
    return word


@pytest.mark.parametrize("order", [4, 5])
@pytest.mark.parametrize("secret", [SECRET, OTHER, bytes(32)])
def test_thue_morse_words_differ(order, secret):
    """Words of 16 and 32 letters that meet under every base of a polynomial hash mod 2^64."""
    word, found = thue_morse(order), []
    for a, b in itertools.permutations(b"abcdxyz059", 2):
        found.append(bytes(a if letter == 0 else b for letter in word))
    parts = [b"".join(pair) for pair in itertools.product(found[:12], repeat=2)]
    parts = [part for part in parts if len(part) <= MAX_BYTES]
    every = sorted({*found, *parts})
    assert len(read([b" ".join(every)], secret=secret).ids) == len(every)


def polynomial(word, base):
    value = 0
    for letter in word:
        value = (value * base + letter) % 2**64
    return value


def differences(base, letters=18):
    """Two words of 18 letters with one value under a public base, by lists meeting in the middle.

    The value is watched modulo 2^32 only: what is wanted is words that are near in structure.
    """
    dice, seen = Random(base), {}
    while True:
        word = bytes(dice.choices(b"abcdefghijklmnopqrstuvwxyz", k=letters))
        value = polynomial(word, base) % 2**32
        if seen.setdefault(value, word) != word:
            return seen[value], word


@pytest.mark.parametrize("base", [31, 257, 0x100000001B3])
def test_words_that_collide_under_a_public_base_differ(base):
    """Pairs that collide under the hashes of textbooks have different ids."""
    one, other = differences(base)
    assert polynomial(one, base) % 2**32 == polynomial(other, base) % 2**32
    ids = read([one + b" " + other]).ids
    assert len(ids) == 2
    assert len({int(i) >> shift & 0xFFFF for i in ids for shift in (0, 16, 32, 48)}) > 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("abc", "abc\0"), ("abcdefgh", "abcdefgh0"), ("0000", "00000"), ("aaab", "baaa"),
        ("abcdefghijkl", "ijklefghabcd"), ("abcdefghABCD0000", "ABCD0000abcdefgh"),
        ("a" * 63, "a" * 64), ("12345678abcdefgh", "abcdefgh12345678"),
    ],
)  # fmt: skip
def test_words_alike_in_their_pieces_differ(one, other):
    """Words with swapped halves, zeros at the end or one more letter have other ids."""
    ids = [set(read([text]).ids.tolist()) for text in (one, other)]
    assert ids[0] != ids[1] or one.rstrip("\0") == other.rstrip("\0")


def test_two_keys_share_no_id():
    """Two models have different ids for a word; the fingerprint identifies the key."""
    text = b" ".join(b"word%d" % number for number in range(20_000))
    one, other = read([text]), read([text], secret=OTHER)
    assert len(np.intersect1d(one.ids, other.ids)) == 0
    assert Key(SECRET).fingerprint() != Key(OTHER).fingerprint()
    assert Key(SECRET).fingerprint() == Key(SECRET).fingerprint()


def test_ids_are_spread_like_chance():
    """Each bit is set in half of the ids, whatever the words: the store splits buckets by them."""
    ids = read([b" ".join(b"w%d" % number for number in range(100, 100_100))]).ids
    for bit in range(64):
        share = np.mean((ids >> np.uint64(bit)) & np.uint64(1))
        assert abs(share - 0.5) < 0.01


def test_the_same_word_in_another_place_is_another_feature():
    """Locations and the names of headers are part of the id."""
    locations = [(location, b"") for location in TokenLocation]
    locations += [(TokenLocation.HEADER, b"x"), (TokenLocation.HEADER, b"y")]
    found = [
        extract(Key(SECRET), [fields("plum", location=location, name=name)]).ids.tolist()
        for location, name in locations
    ]
    every = list(itertools.chain.from_iterable(found))
    assert len(set(every)) == len(every) == len(TokenLocation) + 2


def test_more_header_names_than_are_remembered():
    """Senders choose header names: the cache of seeds stays bounded, and ids never change."""
    key = Key(SECRET)
    first = extract(
        key, [fields("plum", location=TokenLocation.HEADER, name=b"x-first")]
    ).ids.tolist()
    for start in range(0, 2 * SEEDS_KEPT, 512):
        many = [(TokenLocation.HEADER, b"x-%d" % n, b"plum") for n in range(start, start + 512)]
        assert len(extract(key, [many]).ids) == 512
    again = extract(
        key, [fields("plum", location=TokenLocation.HEADER, name=b"x-first")]
    ).ids.tolist()
    assert again == first
    assert len(key._seeds.line) < 2 * SEEDS_KEPT


def test_threads_agree_while_seeds_are_drawn_anew(monkeypatch):
    """A thread may replace the cache of seeds while another thread uses it."""
    monkeypatch.setattr(features, "SEEDS_KEPT", 5)
    messages = [[(TokenLocation.HEADER, b"x-%d" % (n % 11), b"plum fig")] for n in range(300)]
    expected = [extract(Key(SECRET), [one]).ids.tolist() for one in messages]
    key = Key(SECRET)

    def found(_):
        return [extract(key, [one]).ids.tolist() for one in messages]

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(found, range(4))) == [expected] * 4
    finally:
        sys.setswitchinterval(switch)


# --- words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plum fig", ["fig", "plum"]),
        ("Plum", ["Plum", "plum"]),
        ("PLUM plum", ["PLUM", "plum"]),
        ("a an the", ["the"]),
        ("don't", ["don't"]),
        ("well-known", ["well-known"]),
        ("mail.example.com", ["example.com", "mail.example.com"]),
        ("192.0.2.77", ["192.0.2", "192.0.2.77"]),
        ("ann@mail.example.com", ["ann@mail.example.com", "example.com"]),
        ("...plum---", ["plum"]),
        ("plum..fig", ["fig", "plum"]),
        ("$100 50% now!", ["$100", "50%", "now!"]),
        ("", []),
        (". - _ ' @", []),
    ],
)
def test_words_are_cut_as_people_would(text, words):
    """Letters, digits and single joints; capitals and the ends of hosts are words of their own."""
    assert texts(text) == words


@pytest.mark.parametrize("length", [3, 8, 63, 64, 65, 100, 1000, 65_535, 65_536, 65_537, 300_000])
def test_any_length_works(length):
    """A word up to 64 bytes is whole; of a longer one its beginning stays, marked as cut."""
    words = texts("x" * length)
    assert words == ["x" * (length if length <= MAX_BYTES else CUT_BYTES)]
    cut = read(["x" * length]).ids.tolist()
    assert (cut == read(["x" * CUT_BYTES]).ids.tolist()) == (length == CUT_BYTES)
    assert len(read(["x" * length + " plum " + "y" * length]).ids) == 3


@pytest.mark.parametrize(
    "text",
    ["plum Fig mail.example.com 192.0.2.1", "naïve café", "Привет мир", "購入 plum", "x" * 99],
)
def test_bytes_and_text_give_equal_ids(text):
    """A text has the same ids as bytes and as str, ASCII or mixed."""
    as_text = read([text]).ids.tolist()
    assert as_text == read([plain(text)]).ids.tolist()
    if text.isascii():
        assert as_text == read([text.encode()]).ids.tolist()
        mixed = read([text + " 無"]).ids.tolist()
        assert set(as_text) <= set(mixed)


def test_a_message_reads_the_same_alone_and_in_a_batch():
    """The ids of a message do not depend on the other messages of the batch."""
    dice = Random(1)
    words = ["plum", "Fig", "mail.example.com", "x" * 80, "naïve", "", "192.0.2.1"]
    messages = [[" ".join(dice.choices(words, k=dice.randrange(9)))] for _ in range(40)]
    together = read(*messages)
    assert len(together) == 40
    for number, message in enumerate(messages):
        alone = read(message)
        for one, other in zip(together.by_group(number), alone.by_group(0), strict=True):
            assert one.tolist() == other.tolist()


def test_no_message_and_empty_messages():
    """An empty batch has no features; empty messages keep their place in a batch."""
    assert len(extract(Key(SECRET), [])) == 0
    found = extract(Key(SECRET), [[], fields("plum"), []])
    assert [len(found.of(number)) for number in range(3)] == [0, 1, 0]


def test_groups_are_what_was_written_and_how_it_was_sent():
    """Two groups, each sorted; rows of a message are distinct; sizes and times agree with them."""
    every = [location for location in TokenLocation if (location, b"") not in ROUGH]
    message = [
        field
        for location in every
        for field in fields(
            "plum\nfig\nplum" if location in SHAPES else "plum fig plum", location=location
        )
    ]
    found = extract(Key(SECRET), [message, message])
    written, sent = found.by_group(1)
    assert (len(written), len(sent)) == (2 * len(WRITTEN), 2 * (len(every) - len(WRITTEN)))
    for ids in (written, sent):
        assert (np.diff(ids.astype(object)) > 0).all()
    assert found.sizes.tolist() == [len(written), len(sent)] * 2
    times = {
        found.word(row)[1]: n for row, n in zip(found.of(0), found.times.tolist(), strict=False)
    }
    assert times == {b"plum": 2, b"fig": 1}


def test_texts_behind_ids_are_those_of_the_words():
    """For the vocabulary: place and text of each id asked for, and none of strangers'."""
    found = read(["plum Fig mail.example.com " + "x" * 100])
    words = found.words(np.sort(np.append(found.ids, np.array([3, 2**63], np.uint64))))
    assert words.ids.tolist() == found.ids.tolist()
    ends = np.cumsum(words.sizes.astype(int))
    for row, (start, end) in enumerate(zip(ends - words.sizes, ends, strict=True)):
        assert (words.locations[row], words.texts[start:end]) == found.word(row)


def test_distinct_and_spliced_are_what_plain_loops_give():
    """The two tools of the batch: all ids once with their places, and pieces put in a row."""
    dice = np.random.default_rng(1)
    parts = [np.unique(dice.integers(0, 50, size, dtype=np.uint64)) for size in (0, 1, 30, 7)]
    ids, locations = distinct(parts)
    assert ids.tolist() == sorted(set(np.concatenate(parts).tolist()))
    assert all(ids[at].tolist() == part.tolist() for at, part in zip(locations, parts, strict=True))
    source = np.frombuffer(b"plum fig lemon", np.uint8)
    assert join_pieces(source, np.array([5, 0, 9]), np.array([3, 0, 5])) == b"figlemon"


# --- bounded -------------------------------------------------------------------------------


def numbered(count, *, start=0):
    return b" ".join(b"word%d" % number for number in range(start, start + count))


NONE = np.zeros(0, np.uint64)


def test_a_message_within_the_bound_is_left_as_it_is():
    """For messages within the limits the same object is returned."""
    found = read([numbered(50)], [numbered(10)])
    assert found.bounded((50, 50), NONE) is found


def test_a_large_message_keeps_a_sample_by_its_keyed_ids():
    """The smallest ids are kept, with their texts and their counts; others keep all they have."""
    small, large = numbered(20), numbered(300) + b" " + numbered(300, start=100)
    whole = read([small], [large], [small])
    found = whole.bounded((40, 40), NONE)
    assert [len(found.of(index)) for index in range(3)] == [20, 40, 20]
    for index in (0, 2):
        assert (found.by_group(index)[0] == whole.by_group(index)[0]).all()
    kept = whole.by_group(1)[0][:40]
    assert (found.by_group(1)[0] == kept).all()
    assert (found.ids[1:] > found.ids[:-1]).all()
    assert len(found.ids) == len(set(found.ids.tolist()) & set(whole.ids.tolist()))
    texts = {whole.ids[row]: whole.word(row) for row in whole.of(1)}
    assert all(texts[found.ids[row]] == found.word(row) for row in found.of(1))
    start, stop = whole.offsets[1], whole.offsets[1] + 40
    assert (found.times[20:60] == whole.times[start:stop]).all()
    words, before = found.words(kept), whole.words(kept)
    assert (words.texts, words.sizes.tolist()) == (before.texts, before.sizes.tolist())


def test_a_feature_that_decides_something_is_never_left_out():
    """The ids that are asked for stay, with their texts; the other messages stay as they were."""
    whole = read([numbered(20)], [numbered(300)])
    wanted = whole.by_group(1)[0][-2:]
    found = whole.bounded((40, 40), wanted)
    assert (found.by_group(0)[0] == whole.by_group(0)[0]).all()
    kept = np.concatenate((whole.by_group(1)[0][:40], wanted))
    assert (found.by_group(1)[0] == kept).all()
    assert found.word(int(found.of(1)[-1])) == whole.word(int(whole.of(1)[-1]))


def test_each_group_has_a_bound_of_its_own():
    """Many words do not push out how a message was sent, nor the other way round."""
    both = fields(numbered(90)) + fields(numbered(90), location=TokenLocation.RECEIVED)
    found = extract(Key(SECRET), [both]).bounded((30, 60), NONE)
    assert [len(part) for part in found.by_group(0)] == [30, 60]


def test_the_sample_does_not_depend_on_the_place_and_differs_by_key():
    """Neither order nor padding chooses what is read; the choice depends on the secret key."""
    one, other = numbered(400), b" ".join(reversed(numbered(400).split()))
    first, second = (read([text]).bounded((50, 50), NONE) for text in (one, other))
    assert (first.ids == second.ids).all()
    foreign = read([one], secret=OTHER).bounded((50, 50), NONE)
    texts = [{found.word(row) for row in found.of(0)} for found in (first, foreign)]
    assert len(texts[0] & texts[1]) < 25
