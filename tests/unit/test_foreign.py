"""Counts of other filters become the features that mail has, exactly once, whatever the dump."""

import io
import shutil
import sqlite3
import subprocess
from contextlib import closing
from urllib.parse import quote

import numpy as np
import pytest
from support.memory_store import MemoryStore

from spamnb.cli.importing import FORMATS as OFFERED
from spamnb.engine.filter import OWNER, Filter, new_recipe
from spamnb.errors import RefusedError, UserError
from spamnb.maintenance import imports
from spamnb.maintenance.export import load
from spamnb.maintenance.imports import FORMATS, REFUSED, DumpOptions, dump_digest, read_dump
from spamnb.model.tokens import TokenLocation
from spamnb.store import maintenance as audit
from spamnb.store.values import unpacked

TOTALS = b".MSG_COUNT 40 60 20240102\n"
MAIL = (
    b"From: Ann Sample <ann@mail.one.example>\nTo: bob@two.example\n"
    b"Subject: Cheap watches\nContent-Type: text/plain; charset=utf-8\n\n"
    b"Buy cheap at www.shop.example today gr\xc3\xbcn\n"
)


def made(dump, name="bogofilter", recipe=None, **options):
    recipe = recipe or new_recipe()
    return read_dump(recipe, io.BytesIO(dump), DumpOptions(name, **options))


def counts(found):
    """Give (location, text) -> (ham, spam) of what was mapped."""
    words = {word.id: (TokenLocation(word.location), word.text) for word in unpacked(found.words)}
    rows = zip(found.bulk.ids.tolist(), map(tuple, found.bulk.n.tolist()), strict=True)
    return {words[id_]: n for id_, n in rows}


def in_text(*words):
    """Give the features of words of the text, which are counted in links, too."""
    return {
        (place, word): n for word, n in words for place in (TokenLocation.BODY, TokenLocation.URL)
    }


def columns(model):
    with model.store.read() as view:
        ids, records = audit.collect(view.features(), 2)
        totals = view.totals()
        return [ids.tolist(), records.n.tolist(), records.w.tolist(), totals.messages.tolist(),
                totals.tokens.tolist(), totals.bias.tolist(), totals.known]  # fmt: skip


def test_each_prefix_of_bogofilter_has_its_location():
    """A prefix gives the location, a word with a dot is a link too, and unknown places are out."""
    dump = TOTALS + (
        b"watches 5 1 20240102\nwww.shop.example 3 0 20240102\nsubj:cheap 7 0 20240102\n"
        b"from:ann 0 9 20240102\nto:bob 2 2 20240102\nrcvd:mx.example 1 1 20240102\n"
        b"mime:utf-8 4 4 20240102\nurl:192.0.2.7 1 0 20240102\nhead:hello 9 8 20240102\n"
        b"rtrn:ann 9 9 20240102\n"
    )
    found = made(dump)
    place = TokenLocation
    assert counts(found) == {
        **in_text((b"watches", (1, 5))),
        **dict.fromkeys(
            ((where, name + b"hello") for where, name in (
                (place.CONTENT, b""), (place.ID, b""), (place.REPLY, b""),
                *((place.HEADER, header + b":") for header in (
                    b"x-mailer", b"user-agent", b"precedence", b"list-unsubscribe", b"list-id",
                    b"x-priority", b"importance", b"x-mimeole",
                )),
            )), (8, 9)
        ),
        **dict.fromkeys(
            ((where, host) for where in (place.BODY, place.URL)
             for host in (b"www.shop.example", b"shop.example")), (0, 3)
        ),
        (place.SUBJECT, b"cheap"): (0, 7),
        (place.FROM, b"ann"): (9, 0),
        (place.TO, b"bob"): (2, 2),
        (place.RECEIVED, b"mx.example"): (1, 1),
        (place.CONTENT, b"utf-8"): (4, 4),
        (place.PART, b"utf-8"): (4, 4),
        (place.FILE, b"utf-8"): (4, 4),
        (place.URL, b"192.0.2.7"): (0, 1),
        (place.URL, b"192.0.2"): (0, 1),
    }  # fmt: skip
    assert (found.taken, found.left_out, found.skipped) == (9, 1, 0)
    assert (found.trained, found.messages) == ((60, 40), (60, 40))


def test_spellings_of_a_word_are_united_as_if_independent():
    """The folded feature has N (1 - prod(1 - n / N)), each spelling its own count."""
    dump = TOTALS + b"Cheap 20 0 20240102\nCHEAP 20 0 20240102\ncheap 40 30 20240102\n"
    found = counts(made(dump))
    assert found[TokenLocation.BODY, b"Cheap"] == (0, 20)
    assert found[TokenLocation.BODY, b"cheap"] == (30, 40)
    dump = TOTALS + b"Cheap 20 30 20240102\nCHEAP 20 30 20240102\n"
    assert counts(made(dump))[TokenLocation.BODY, b"cheap"] == (45, 30)


def test_counts_above_the_limit_are_scaled_with_their_totals():
    """A dump of more messages counts as `most`; words that become rare are left out."""
    dump = b".MSG_COUNT 4000 6000 20240102\ncommon 4000 3000 20240102\nrare 3 3 20240102\n"
    found = made(dump, most=100)
    assert found.messages == (60, 40)
    assert counts(found) == in_text((b"common", (30, 40)))


@pytest.mark.parametrize("chunk", [1, 3, 8192])
def test_mapped_words_are_features_of_mail(monkeypatch, chunk):
    """The ids under the model's key are those that a message with these words has."""
    monkeypatch.setattr(imports, "CHUNK", chunk)
    model = Filter(MemoryStore(new_recipe()))
    dump = TOTALS + (
        b"Buy 1 1 20240102\nwww.shop.example 1 1 20240102\nsubj:Cheap 1 1 20240102\n"
        b"from:ann 1 1 20240102\nto:two.example 1 1 20240102\ngr\xc3\xbcn 1 1 20240102\n"
        b"mime:utf-8 1 1 20240102\n"
    )
    found = made(dump, recipe=model.recipe)
    here = np.concatenate(model.example(MAIL).ids)
    known = {words for words, id_ in zip(counts(found), found.bulk.ids, strict=True) if id_ in here}
    assert known >= {
        (TokenLocation.BODY, b"buy"),
        (TokenLocation.BODY, b"Buy"),
        (TokenLocation.BODY, "grün".encode()),
        (TokenLocation.BODY, b"www.shop.example"),
        (TokenLocation.BODY, b"shop.example"),
        (TokenLocation.SUBJECT, b"cheap"),
        (TokenLocation.FROM, b"ann"),
        (TokenLocation.TO, b"two.example"),
        (TokenLocation.CONTENT, b"utf-8"),
        (TokenLocation.PART, b"utf-8"),
    }


def test_undo_restores_every_number():
    """After import and undo, rows, corrections and sums are those of before."""
    model = Filter(MemoryStore(new_recipe()))
    for number in range(12):
        model.learn(MAIL.replace(b"today", b"today%d" % number), ("ham", "spam")[number % 2])
    before = columns(model)
    dump = TOTALS + b"Buy 30 2 20240102\nsubj:Cheap 9 1 20240102\nnew 3 3 20240102\n"
    found = made(dump, recipe=model.recipe)
    digest = dump_digest(io.BytesIO(dump))
    receipt = load(model, found.bulk, found.words, OWNER, digest)
    assert columns(model) != before
    with pytest.raises(RefusedError, match=f"imported before: event {receipt.event}"):
        load(model, found.bulk, found.words, OWNER, digest)
    model.undo(receipt)
    assert columns(model) == before
    again = load(model, found.bulk, found.words, OWNER, digest)
    twice = load(model, found.bulk, found.words, OWNER)
    model.undo(again)
    model.undo(twice)
    assert columns(model) == before
    with model.store.read() as view:
        assert audit.check(view) == []


def test_a_day_of_the_dump_is_the_day_of_its_features():
    """Features of the dump expire by the day of their line, others by the day of the import."""
    found = made(TOTALS + b"old 1 1 20000111\nnone 1 1 0\nwrong 1 1 20249999\n")
    days = dict(zip(counts(found), found.bulk.days.tolist(), strict=True))
    assert days[TokenLocation.BODY, b"old"] == 10
    assert days[TokenLocation.BODY, b"none"] == days[TokenLocation.BODY, b"wrong"] > 9000


def test_spambayes_words_are_unquoted_and_placed():
    """The first line has the totals, quoted words keep their text, prefixes give the location."""
    dump = (
        b"60,40\r\nwatches,1,5\r\nsubject%3ACheap,0,7\r\nfrom%3Aaddr%3Aone.example,9,0\r\n"
        b"from%3Ano%20real%20name%3A2%2A%2A0,3,3\r\nurl%3Ashop.example,0,3\r\n"
        b"message-id%3A%40one.example,8,0\r\nx-mailer%3Acommonmailer,2,1\r\nskip%3Aa%2010,5,5\r\n"
        b"gr%C3%BCn,4,0\r\nproto%3Ahttp,9,9\r\n"
    )
    found = made(dump, "spambayes")
    place = TokenLocation
    assert counts(found) == {
        **in_text((b"watches", (1, 5)), ("grün".encode(), (4, 0))),
        (place.SUBJECT, b"Cheap"): (0, 7),
        (place.SUBJECT, b"cheap"): (0, 7),
        (place.FROM, b"one.example"): (9, 0),
        (place.URL, b"shop.example"): (0, 3),
        (place.ID, b"one.example"): (8, 0),
        (place.HEADER, b"x-mailer:commonmailer"): (2, 1),
    }
    assert (found.trained, found.left_out) == ((60, 40), 3)


def popfile(*, words=(("watches", 1, 500), ("subject:cheap", 1, 30), ("watches", 2, 2))):
    """Give a database with the tables of POPFile that are read."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(
            """
            create table buckets (id integer primary key, userid, name, pseudo int, comment);
            create table words (id integer primary key, word, created);
            create table matrix (id integer primary key, wordid, bucketid, times, lastseen);
            create table bucket_template (id integer primary key, name, def);
            create table bucket_params (id integer primary key, bucketid, btid, val);
            insert into buckets values
                (1, 1, 'spam', 0, ''), (2, 1, 'work', 0, ''), (3, 1, 'private', 0, ''),
                (4, 1, 'unclassified', 1, '');
            insert into bucket_template values (1, 'count', 0), (2, 'color', 'black');
            insert into bucket_params values
                (1, 1, 1, '400'), (2, 2, 1, '300'), (3, 3, 1, '300'), (4, 4, 1, '50'),
                (5, 1, 2, 'red');
            """
        )
        for number, word in enumerate(dict.fromkeys(word for word, _, _ in words), 1):
            database.execute("insert into words values (?, ?, '')", (number, word))
            for one, bucket, times in words:
                if one == word:
                    row = (number, bucket, times)
                    database.execute("insert into matrix values (null, ?, ?, ?, '')", row)
        return bytes(database.serialize())


def test_popfile_counts_are_limited_and_weigh_a_tenth():
    """Occurrences above the messages are cut; all buckets but spam together are ham."""
    found = made(popfile(), "popfile")
    assert found.trained == (600, 400)
    assert found.messages == (60, 40)
    assert found.weight == 0.1
    assert counts(found) == {
        **in_text((b"watches", (0, 40))),
        (TokenLocation.SUBJECT, b"cheap"): (0, 3),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_filters_with_hashes_are_refused_with_the_reason(name):
    """The error says why, and what to do with the mail instead."""
    with pytest.raises(UserError, match="hashes") as refused:
        made(TOTALS, name)
    assert "spamnb train" in refused.value.hint


def test_the_command_offers_every_format():
    """The list of the option, which must not import the readers, is the list of the formats."""
    assert OFFERED == FORMATS


def test_only_a_model_of_such_labels_and_mail_takes_a_dump():
    """Labels that the model does not have, documents and occurrences are refused."""
    dump = TOTALS + b"watches 5 1 20240102\n"
    swapped = made(dump, recipe=new_recipe(labels=("spam", "news", "ham")))
    assert swapped.bulk.n.tolist() == 2 * [[5, 0, 1]]
    for recipe in (new_recipe(labels=("a", "b")), new_recipe(documents=True)):
        with pytest.raises((UserError, RefusedError)):
            made(dump, recipe=recipe)
    with pytest.raises(UserError, match="labels"):
        made(dump, labels=("ham", "ham"))
    assert made(dump, recipe=new_recipe(labels=("a", "b")), labels=("a", "b")).taken == 1


@pytest.mark.parametrize(
    ("name", "dump"),
    [
        ("bogofilter", b""),
        ("bogofilter", b"watches 5 1 20240102\n"),
        ("bogofilter", TOTALS),
        ("bogofilter", b".MSG_COUNT 0 0 20240102\nwatches 5 1 20240102\n"),
        ("bogofilter", b"v\t3\tdb_version\n" * 100),
        ("bogofilter", TOTALS + b"a " * 1_000_000),
        ("bogofilter", bytes(range(256)) * 1000),
        ("spambayes", b""),
        ("spambayes", b"word,1,1\n"),
        ("spambayes", b"1," * 1_000_000),
        ("popfile", b""),
        ("popfile", b"SQLite format 3\0" + bytes(5000)),
        ("popfile", bytes(range(256)) * 100),
        ("popfile", popfile()[:-4096]),
        ("popfile", popfile(words=())),
        ("elm", TOTALS),
    ],
)
def test_what_is_no_dump_is_refused(name, dump):
    """Without totals or words nothing is imported, and the error is one of the user's."""
    with pytest.raises(UserError):
        made(dump, name)


def test_a_view_in_place_of_a_table_is_refused():
    """A database of POPFile cannot bring code: its tables must be tables."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(popfile())
        database.executescript(
            "drop table matrix; create view matrix as with recursive c(n) as"
            " (select 1 union all select n + 1 from c) select n as wordid, 1 as bucketid,"
            " 1 as times from c"
        )
        dump = bytes(database.serialize())
    with pytest.raises(UserError, match="no table matrix"):
        made(dump, "popfile")


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\xfd 5 1 20240102",
        b"x" * 5_000_000,
        b"word 5 1",
        b"word -5 1 20240102",
        b"word 5 one 20240102",
        b"word \xb2 1 20240102",
        b"a b c 1 1 1",
        b"n\0l 1 1 20240102",
        b"",
        b".ROBX 1 1 20240102",
        b"zero 0 0 20240102",
        b"in \xd9\xa3 1 20240102",
    ],
)
def test_one_bad_line_does_not_spoil_the_others(line):
    """Lines that are no words of this model add nothing, and the rest is imported."""
    found = made(TOTALS + line + b"\ngood 5 1 20240102\n")
    assert counts(found) == in_text((b"good", (1, 5)))


@pytest.mark.parametrize(
    ("word", "read"),
    [
        (b"vi\0agra", b"viagra"),
        (b"\0\0nul\0word\x7f", b"nulword"),
        (b"sub\x1bject", b"subject"),
        ("вклад\u200bчик".encode(), "вкладчик".encode()),
        ("می\u200cخواهم".encode(), "میخواهم".encode()),
    ],
)
def test_invisible_characters_are_removed_as_in_mail(word, read):
    """The word becomes the features of mail with it, and the figures say that it was cleaned."""
    for name, dump in (
        ("bogofilter", TOTALS + word + b" 5 1 20240102\n"),
        ("spambayes", b"60,40\n" + quote(word).encode() + b",1,5\n"),
    ):
        found = made(dump, name)
        assert counts(found) == in_text((read, (1, 5)))
        assert found.as_dict()["cleaned"] == 1
    assert made(TOTALS + read + b" 5 1 20240102\n").as_dict()["cleaned"] == 0


def test_a_word_that_this_model_cuts_gives_its_parts():
    """Texts without spaces, which other filters keep as one word, give pairs of characters."""
    found = counts(made(TOTALS + "天氣好 5 1 20240102\n".encode()))
    assert found == in_text(("天氣".encode(), (1, 5)), ("氣好".encode(), (1, 5)))


def test_counts_beyond_the_totals_are_limited():
    """Counts and totals of 2^63 and more give counts within the range of the store."""
    huge = b"9" * 400
    found = made(TOTALS + b"many %d %s 20240102\n" % (1 << 63, huge))
    assert counts(found) == in_text((b"many", (60, 40)))
    found = made(b".MSG_COUNT %d 1 0\nmany %d 1 0\n" % (1 << 63, 1 << 63))
    assert found.messages == (1, 3000)
    assert counts(found) == in_text((b"many", (0, 3000)))


def test_only_the_commonest_features_are_taken(monkeypatch):
    """A dump of any size adds a bounded number of features, those of most messages."""
    monkeypatch.setattr(imports, "FEATURES", 80)
    lines = b"".join(b"word%d %d 0 20240102\n" % (n, n % 20) for n in range(4000))
    found = made(TOTALS + lines)
    assert len(found.bulk.ids) == len(found.words.ids) == 80
    assert found.bulk.n.min(axis=0).tolist() == [0, 19]


@pytest.mark.skipif(shutil.which("bogofilter") is None, reason="bogofilter is not installed")
def test_a_real_dump_of_bogofilter_is_read(tmp_path):
    """What bogofilter learnt from a message are features that this message has."""
    for label, count in (("-n", 2), ("-s", 3)):
        for number in range(count):
            raw = MAIL.replace(b"today", label.encode() + b"%d" % number)
            subprocess.run(["bogofilter", "-C", "-d", tmp_path, label], input=raw, check=True)
    dump = subprocess.run(
        ["bogoutil", "-d", tmp_path / "wordlist.db"], capture_output=True, check=True
    ).stdout
    model = Filter(MemoryStore(new_recipe()))
    found = made(dump, recipe=model.recipe)
    assert found.trained == (2, 3)
    assert found.skipped == 0
    places = counts(found)
    assert places[TokenLocation.SUBJECT, b"watches"] == (2, 3)
    assert places[TokenLocation.BODY, "grün".encode()] == (2, 3)
    load(model, found.bulk, found.words, OWNER)
    clues = {clue.token for clue in model.score(MAIL).clues(None)}
    assert {"watches", "grün", "cheap"} <= clues
