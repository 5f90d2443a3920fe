"""Packing: messages are the same after packing and unpacking, with all of their words."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from spamnb.engine.bulk import MessageName, Packer, examples
from spamnb.engine.mailboxes import Unreadable
from spamnb.engine.scoring import MessageReader, example_of
from spamnb.engine.values import MergedWords
from spamnb.model.events import Recipe

KEY = bytes(range(32))
WITH_WORDS, WITHOUT = Recipe(key=KEY), Recipe(key=KEY, vocabulary=False)


def mail(number, text):
    head = f"From: ann@a.example\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\n{text}\n".encode()


RAWS = [
    mail(1, "plum fig plum"),
    b"",
    mail(2, "Fig LEMON lemon " + "x" * 100),
    mail(3, "pear"),
    b"\n",
    mail(4, " ".join(f"word{number}" for number in range(100))),
]
LONG = 5
"""the only one whose text has several blocks"""


def feature_batch(raws):
    return MessageReader(KEY).feature_batch(raws)


def packed(raws, packer, *, bad=()):
    read = feature_batch(raws)
    names = [MessageName(message.digest, message.message_id) for message in read.messages]
    for place in bad:
        names.insert(place, Unreadable(f"file {place}", "empty"))
    return read, pickle.loads(pickle.dumps(packer.pack(names, read.features)))


@pytest.mark.parametrize("occurrences", [False, True])
def test_messages_come_back_as_they_were(occurrences):
    """Packed, sent and unpacked, each message has its ids by group, name, counts and blocks."""
    recipe = replace(WITHOUT, kind="multinomial", occurrences=True) if occurrences else WITHOUT
    read, released = packed(RAWS, Packer(recipe))
    found = examples(released, 2)
    assert len(found) == len(RAWS)
    for index, example in enumerate(found):
        want = example_of(read.messages[index], read.features, index, recipe)
        assert (example.digest, example.message_id) == (want.digest, want.message_id)
        assert [ids.tolist() for ids in example.ids] == [ids.tolist() for ids in want.ids]
        assert (example.times is None) == (not occurrences)
        if occurrences:
            assert example.times.tolist() == want.times.tolist()
        assert (example.blocks is None) == (want.blocks is None) == (occurrences or index != LONG)
        if want.blocks is not None:
            assert example.blocks.tolist() == want.blocks.tolist()


@pytest.mark.parametrize("bad", [(0,), (1, 3), (5,), (0, 1, 2)])
def test_what_could_not_be_read_keeps_its_place(bad):
    """Unreadable files stay in their place in the list."""
    _, released = packed(RAWS, Packer(WITH_WORDS), bad=bad)
    found = examples(released, 2)
    assert [index for index, one in enumerate(found) if isinstance(one, Unreadable)] == list(bad)
    good = [one.digest for one in found if not isinstance(one, Unreadable)]
    assert good == [message.digest for message in feature_batch(RAWS).messages]


def test_a_portion_of_nothing_but_unreadable_files():
    """A batch without messages has only names."""
    _, released = packed([], Packer(WITH_WORDS), bad=(0, 1))
    assert [one.name for one in examples(released, 2)] == ["file 0", "file 1"]


def texts(words):
    ends = np.cumsum(words.sizes.astype(int))
    starts = ends - words.sizes
    spans = zip(words.ids.tolist(), words.locations.tolist(), starts, ends, strict=True)
    return {feature: (place, words.texts[a:b]) for feature, place, a, b in spans}


def test_a_worker_sends_every_text_once():
    """The first batch has all of its words, the second one only new words."""
    packer = Packer(WITH_WORDS)
    read, first = packed(RAWS, packer)
    assert texts(first.words) == texts(read.features.words(read.features.ids))
    again, second = packed([*RAWS, mail(4, "quince")], packer)
    new = np.setdiff1d(again.features.ids, read.features.ids)
    assert set(texts(second.words)) == set(new.tolist())


def test_words_that_share_a_slot_are_sent_again_and_not_lost():
    """A forgotten id is sent again; a word is never omitted wrongly."""
    packer = Packer(WITH_WORDS)
    packer._sent = packer._sent[:4].copy()
    seen = {}
    for number in range(20):
        read = feature_batch([mail(number, f"word{number} plum fig other{number % 3}")])
        slots = (read.features.ids & np.uint64(3)).astype(int)
        new = np.flatnonzero(packer._sent[slots] != read.features.ids)
        packer._sent[slots[new]] = read.features.ids[new]
        seen |= texts(read.features.words(read.features.ids[new]))
        assert set(read.features.ids.tolist()) <= set(seen)


def test_no_text_travels_without_a_vocabulary():
    """Without a vocabulary no words are sent."""
    _, released = packed(RAWS, Packer(WITHOUT))
    assert released.words is None


def test_a_glossary_finds_words_of_all_portions():
    """A word is found in any batch; unknown ids have none."""
    packer = Packer(WITH_WORDS)
    one, first = packed(RAWS[:2], packer)
    two, second = packed(RAWS[2:], packer)
    glossary = MergedWords([first.words, second.words])
    want = texts(one.features.words(one.features.ids)) | texts(two.features.words(two.features.ids))
    every = np.union1d(one.features.ids, two.features.ids)
    found = texts(glossary.words(every))
    assert found.keys() == want.keys()
    assert {f: text.lower() for f, (_, text) in found.items()} == {
        f: text.lower() for f, (_, text) in want.items()
    }
    assert len(glossary.words(np.array([1, 2**64 - 1], np.uint64)).ids) == 0
    assert len(MergedWords([]).words(every).ids) == 0
