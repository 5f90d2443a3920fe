"""Values survive encoding and decoding, and inconsistent bytes raise an error."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamnb.errors import BugError, StoreDamagedError, StoreVersionError
from spamnb.model.events import (
    BulkChange,
    Event,
    EventKind,
    Recipe,
    Records,
    RehearsalUpdate,
    Totals,
    Update,
    no_totals,
    no_update,
)
from spamnb.store.codec import (
    ByteCursor,
    FrequentIds,
    NamedTable,
    chunk,
    decode_event,
    decode_ids,
    decode_ints,
    decode_recipe,
    decode_small,
    decode_totals,
    empty_rows,
    encode_event,
    encode_ids,
    encode_ids_raw,
    encode_ints,
    encode_recipe,
    encode_small,
    encode_totals,
    records_of,
    row_type,
    text,
    to_rows,
    varint,
)
from spamnb.store.journal import Pages
from spamnb.store.values import MessageState

U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
ID_SETS = st.sets(U64, max_size=80).map(lambda s: np.array(sorted(s), np.uint64))
ANY_TEXT = st.text(st.characters(), max_size=20)
NAMED = NamedTable.of(np.arange(500, dtype=np.uint64) << np.uint64(50))


MOST = (1 << 63) - 1


def ints(*shape):
    size = int(np.prod(shape))
    return st.lists(I64, min_size=size, max_size=size).map(
        lambda v: np.array(v, np.int64).reshape(shape)
    )


@st.composite
def updates(draw, groups, labels, *, personal=False):
    rehearsals = st.lists(
        st.builds(
            RehearsalUpdate,
            st.lists(ID_SETS, min_size=groups, max_size=groups).map(tuple),
            ints(groups, labels),
        ),
        max_size=2,
    )
    steps, bias, temperatures = ints(groups, labels), ints(groups, labels), ints(groups)
    own = draw(ints(groups, labels - 1)) if personal else None
    return Update(draw(steps), draw(bias), draw(temperatures), tuple(draw(rehearsals)), own)


@st.composite
def events(draw):
    groups, labels = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    ids = tuple(draw(st.lists(ID_SETS, max_size=groups)))
    person = draw(st.sampled_from([0, 1, (1 << 64) - 1]))
    kind = draw(st.sampled_from(EventKind))
    is_owned = not person and kind != EventKind.ERASED
    owner = draw(st.sampled_from([0, 1, (1 << 64) - 1])) if is_owned else 0
    any_update = updates(groups, labels, personal=bool(person) or kind == EventKind.ERASED)
    delta = draw(any_update)
    count = sum(map(len, ids))
    times = st.lists(st.integers(0, (1 << 32) - 1), min_size=count, max_size=count)
    blocks = st.lists(st.integers(0, 255), min_size=count, max_size=count)
    bulk = None
    if draw(st.booleans()):
        named = draw(ID_SETS)
        n, w = draw(ints(len(named), labels)), draw(ints(len(named), labels))
        sums = draw(ints(labels)), draw(ints(groups, labels)), draw(ints(groups))
        bulk = BulkChange(named, n, w, *sums, np.arange(len(named), dtype=np.uint16))
    return Event(
        seq=draw(st.integers(1, 1 << 50)),
        kind=kind,
        time_us=draw(I64),
        user=draw(ANY_TEXT),
        channel=draw(ANY_TEXT),
        digest=draw(st.binary(max_size=32)),
        message_id=draw(ANY_TEXT),
        before=draw(st.integers(-1, labels - 1)),
        after=draw(st.integers(-1, labels - 1)),
        previous=draw(st.integers(0, 1 << 50)),
        ids=ids,
        delta=delta,
        net_update=draw(st.one_of(st.just(delta), any_update)),
        times=np.array(draw(times), np.uint32) if draw(st.booleans()) else None,
        bulk=bulk,
        undoes=draw(st.integers(0, 1 << 50)),
        immediate=draw(st.booleans()),
        weight=draw(st.sampled_from([1.0, 0.1, 0.0])),
        person=person,
        owner=owner,
        blocks=np.array(draw(blocks), np.uint8) if draw(st.booleans()) else None,
        left_out=draw(st.sampled_from([b"", b"\1", bytes(range(40))])),
    )


def plain(value):
    """A value of arrays as one that compares."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if hasattr(value, "__slots__"):
        return tuple(plain(getattr(value, name)) for name in value.__slots__)
    return value


class TestIds:
    @given(ID_SETS)
    def test_any_set_comes_back(self, ids):
        """Sets of any size, from 0 to the last id."""
        for data in (encode_ids(ids), encode_ids_raw(ids)):
            assert decode_ids(ByteCursor(data)).tolist() == ids.tolist()

    @pytest.mark.parametrize("count", [1, 32, 33, 300, 5_000, 200_000])
    def test_sets_of_hashes_are_near_the_bound(self, count):
        """Uniform ids cost at most a third of a byte more than their information."""
        ids = np.unique(np.random.default_rng(count).integers(0, 1 << 64, count, dtype=np.uint64))
        data = encode_ids(ids)
        assert np.array_equal(decode_ids(ByteCursor(data)), ids)
        bound = min(8.0, (64 - np.log2(len(ids)) + 1.44) / 8)
        assert len(data) / len(ids) < bound + 0.7 + 4 / len(ids)

    def test_a_message_of_300_costs_seven_and_a_quarter(self):
        """The size that the bound on the journal assumes."""
        ids = np.unique(np.random.default_rng(1).integers(0, 1 << 64, 300, dtype=np.uint64))
        assert len(encode_ids(ids)) <= 7.25 * len(ids)

    @given(st.binary(max_size=60))
    def test_any_bytes_are_ids_or_damage(self, data):
        """Invalid bytes raise an error and are never read past the end."""
        with suppress(StoreDamagedError):
            decode_ids(ByteCursor(data))

    def test_a_bitmap_with_a_wrong_sum_is_damage(self):
        """The bitmap must name as many ids as the count says."""
        ids = np.arange(40, dtype=np.uint64) << np.uint64(58)
        data = bytearray(encode_ids(ids))
        data[-1] = 0xFF
        with pytest.raises(StoreDamagedError):
            decode_ids(ByteCursor(bytes(data)))


FREQUENT = np.random.default_rng(3).integers(0, 1 << 64, 5_000, dtype=np.uint64)
TABLE = FrequentIds.of(FREQUENT)
MESSAGES = st.lists(
    st.tuples(ID_SETS, st.sets(st.sampled_from(FREQUENT.tolist()), max_size=80)).map(
        lambda two: np.array(sorted({*two[0].tolist(), *two[1]}), np.uint64)
    ),
    max_size=4,
)


class TestFrequentIds:
    @given(MESSAGES)
    def test_any_sets_come_back(self, sets):
        """Ids in the table, others with the place of one of these, and empty sets."""
        sets.append(np.array([0, int(FREQUENT[0]) ^ 1, (1 << 64) - 1], np.uint64))
        sets[-1].sort()
        reader = ByteCursor(TABLE.encode(sets) + b"rest")
        assert [one.tolist() for one in TABLE.decode(reader)] == [one.tolist() for one in sets]
        assert bytes(reader.take(4)) == b"rest"

    def test_no_sets(self):
        """A message without groups of features."""
        assert TABLE.decode(ByteCursor(TABLE.encode([]))) == ()

    def test_the_most_frequent_id_of_a_place_is_chosen(self):
        """Of two ids with the same top bits, that which occurs more often."""
        rare, often = 7 << 48 | 1, 7 << 48 | 2
        table = FrequentIds.of(np.array([often, rare, often], np.uint64))
        assert table.ids[7] == often
        assert len(table.encode([np.array([often], np.uint64)])) + 6 == len(
            table.encode([np.array([rare], np.uint64)])
        )

    def test_frequent_ids_take_a_fifth_of_their_bytes(self):
        """Those of a message of 300 features that are all in the table."""
        ids = np.unique(TABLE.ids[TABLE.ids > 0][:300])
        assert len(TABLE.encode([ids])) <= 8 * len(ids) / 5

    @given(st.binary(max_size=300))
    def test_any_bytes_are_ids_or_damage(self, data):
        """Invalid bytes raise an error and are never read past the end."""
        with suppress(StoreDamagedError):
            TABLE.decode(ByteCursor(data))

    def test_inconsistent_bytes_are_damage(self):
        """A bitmap that names too many ids, and a table of another size."""
        data = TABLE.encode([FREQUENT[:3]])
        with pytest.raises(StoreDamagedError, match="bitmap"):
            TABLE.decode(ByteCursor(data[:-2] + b"\xff\xff"))
        with pytest.raises(StoreDamagedError, match="table"):
            FrequentIds(FREQUENT)


class TestSmallBytes:
    @given(st.lists(st.integers(0, 255)) | st.lists(st.integers(0, 15)))
    def test_any_come_back(self, values):
        """In half the bytes if all are small."""
        data = encode_small(np.array(values, np.uint8))
        assert decode_small(ByteCursor(data), len(values)).tolist() == values
        half = max(values, default=0) < 16
        assert len(data) == 1 + ((len(values) + 1) // 2 if half else len(values))

    def test_another_width_is_damage(self):
        """Only 4 and 8 bits are known."""
        with pytest.raises(StoreDamagedError):
            decode_small(ByteCursor(b"\x05\x00"), 1)


class TestIntegers:
    @given(st.lists(I64, max_size=20))
    def test_any_integers_come_back(self, values):
        """Arrays of 64-bit integers, in as few bytes as their extremes allow."""
        array = np.array(values, np.int64)
        assert decode_ints(ByteCursor(encode_ints(array)), len(values)).tolist() == values

    @pytest.mark.parametrize(
        ("value", "size"), [(0, 1), (-128, 2), (128, 3), (-32769, 5), (1 << 40, 9)]
    )
    def test_width_follows_the_extremes(self, value, size):
        """One byte for zeros, then 1, 2, 4 or 8 each."""
        assert len(encode_ints(np.array([value]))) == size

    def test_more_than_64_bits_is_a_bug(self):
        """A value out of range raises an error instead of wrapping around."""
        with pytest.raises(BugError):
            encode_ints(np.array([(1 << 64) - 1], np.uint64))

    def test_an_unknown_width_is_damage(self):
        """Widths are 0, 1, 2, 4 and 8."""
        with pytest.raises(StoreDamagedError):
            decode_ints(ByteCursor(b"\x03abc"), 1)

    @given(U64)
    def test_varints(self, value):
        """Any unsigned 64-bit number."""
        assert ByteCursor(varint(value)).varint() == value

    def test_a_varint_without_end_is_damage(self):
        """Ten bytes are enough for 64 bits."""
        with pytest.raises(StoreDamagedError):
            ByteCursor(b"\xff" * 11).varint()

    @given(st.text(st.characters()), st.binary())
    def test_texts_and_chunks(self, value, raw):
        """Lone surrogates and all: a header may hold anything."""
        reader = ByteCursor(text(value) + chunk(raw))
        assert reader.text() == value
        assert reader.chunk() == raw

    def test_a_text_that_is_no_utf8_is_damage(self):
        """A flipped bit in a name raises an error."""
        with pytest.raises(StoreDamagedError):
            ByteCursor(chunk(b"\xff\xfe")).text()


class TestRows:
    def test_a_row_has_18_bytes_at_two_labels(self):
        """The row size that the documented store size assumes."""
        assert [row_type(k).itemsize for k in (2, 3, 10)] == [18, 26, 82]

    def test_rows_and_columns(self):
        """Columns survive the rows; a row with a day alone is empty."""
        n = np.array([[1, 0], [0, 0], [0, 0]], np.uint32)
        w = np.array([[0, 0], [0, -1], [0, 0]], np.int32)
        records = Records(n, w, np.array([1, 2, 3], np.uint16))
        assert plain(records_of(to_rows(records))) == plain(records)
        assert empty_rows(records).tolist() == [False, False, True]


class TestEvents:
    @given(events())
    def test_any_event_comes_back(self, event):
        """Every field, in every combination of what may be missing."""
        assert plain(decode_event(event.seq, encode_event(event))) == plain(event)

    @given(events(), st.sampled_from([None, NAMED]), st.data())
    def test_a_cut_event_is_damage(self, event, table, data):
        """A truncated event raises an error, wherever it was cut."""
        raw = encode_event(event, table)
        short = raw[: data.draw(st.integers(0, len(raw) - 1))]
        with pytest.raises(StoreDamagedError):
            decode_event(event.seq, short, lambda _: NAMED.table)

    @given(events(), st.lists(ID_SETS, max_size=3))
    def test_any_event_comes_back_by_a_table(self, event, frequent):
        """With a table of some of its ids and of others; without this table it cannot be read."""
        table = NamedTable.of(np.concatenate([*event.ids, *frequent, np.zeros(0, np.uint64)]))
        raw = encode_event(event, table)
        assert plain(decode_event(event.seq, raw, {table.name: table.table}.__getitem__)) == plain(
            event
        )
        assert encode_event(decode_event(event.seq, raw, lambda _: table.table)) == encode_event(
            event
        )
        with pytest.raises(StoreDamagedError, match="frequent ids is missing"):
            decode_event(event.seq, raw)

    def test_a_learn_keeps_one_push(self):
        """A `net_update` equal to `delta` is not written, even if it is another object."""
        update = Update(*np.ones((2, 1, 2), np.int64), np.ones(1, np.int64))
        event = Event(1, EventKind.LEARN, 0, "", "", b"", "", -1, 0, 0, (), update, update)
        other = event._replace(net_update=update._replace(steps=update.steps.copy()))
        assert encode_event(event) == encode_event(other)
        moved = event._replace(net_update=no_update(1, 2))
        assert len(encode_event(moved)) > len(encode_event(event))

    def test_another_version_and_an_unknown_kind(self):
        """An event of a newer version raises StoreVersionError; an unknown kind is damage."""
        update = no_update(1, 2)
        event = Event(1, EventKind.LEARN, 0, "", "", b"", "", -1, 0, 0, (), update, update)
        raw = bytearray(encode_event(event))
        with pytest.raises(StoreVersionError):
            decode_event(1, b"\x63" + bytes(raw[1:]))
        raw[1] = 99
        with pytest.raises(StoreDamagedError):
            decode_event(1, bytes(raw))


class TestSmallValues:
    @given(ints(3), ints(3), ints(2, 3), ints(2), st.integers(0, 5))
    def test_totals(self, messages, tokens, bias, temperatures, columns):
        """Totals with and without a histogram; an empty histogram keeps its rows."""
        for histogram in (
            np.zeros((0, 0), np.int64),
            np.arange(3 * columns, dtype=np.int64).reshape(3, columns),
        ):
            counts = (messages & MOST, tokens & MOST)
            totals = Totals(*counts, bias, temperatures, 7, 1 << 40, histogram)
            again = decode_totals(encode_totals(totals))
            assert plain(again) == plain(totals)
            assert again.histogram.shape == histogram.shape

    def test_totals_of_another_version(self):
        """A newer program's totals are refused."""
        with pytest.raises(StoreVersionError):
            decode_totals(b"\x63" + encode_totals(no_totals(1, 2))[1:])

    @pytest.mark.parametrize("field", ["messages", "tokens"])
    def test_totals_below_zero_are_damage(self, field):
        """Logarithms of them would give no number, and no line would name the damage."""
        totals = no_totals(1, 2)
        getattr(totals, field)[0] = -7
        data = encode_totals(totals)
        with pytest.raises(StoreDamagedError):
            decode_totals(data)

    def test_lines_of_digests(self):
        """Label, seq and whether it is folded; nothing else has that length."""
        live = MessageState(-1, 1 << 60, folded=True)
        assert MessageState.decode(live.encode()) == live
        with pytest.raises(StoreDamagedError):
            MessageState.decode(b"short")

    def test_recipes(self):
        """A recipe survives encoding; unknown constants and broken bytes raise different errors."""
        recipe = Recipe(labels=("a", "b", "ü"), key=b"\x01" * 32, eta=0.1 + 0.2)
        raw = encode_recipe(recipe)
        assert decode_recipe(raw) == recipe
        with pytest.raises(StoreVersionError):
            decode_recipe(json.dumps(json.loads(raw) | {"zeta": 1}).encode())
        with pytest.raises(StoreVersionError):
            decode_recipe(encode_recipe(replace(recipe, extra={"zeta": 1.0})))
        with pytest.raises(StoreDamagedError):
            decode_recipe(raw[:-9])


class TestPages:
    @given(st.lists(st.integers(1, 200_000), max_size=12), st.integers(0, 4080))
    def test_pieces_cover_the_value(self, lengths, room):
        """Cuts rise to the value's end; pieces stay inside pages or fill runs of them."""
        pages = Pages(4096, room & ~1)
        for length in lengths:
            ends = pages.cut(length)
            sizes = np.diff([0, *ends])
            assert ends[-1] == length
            assert (sizes > 0).all()
            assert sizes.max() <= 16 * 4096 - 16
            assert length > 32_768 or sizes.max() <= 2020

    def test_typical_events_fill_pages(self):
        """Two thousand bytes an event: heads, keys and lost ends together stay under 3.5 %."""
        pages = Pages(4096, 0)
        used = sum(18 + size + 2 for _ in range(500) for size in np.diff([0, *pages.cut(2290)]))
        assert used < 500 * 2290 * 1.035
