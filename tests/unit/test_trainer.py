"""Training from folders: even, repeatable, on any number of cores, never stopped by a file."""

import itertools
import mailbox
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.waiting import LIMIT_S

from spamnb.engine import bulk
from spamnb.engine.bulk import TrainingOptions, interleaved, train
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.learner import LearningBatch
from spamnb.engine.values import Source
from spamnb.errors import CorpusError, LabelError, StoreMissingError
from spamnb.store import maintenance
from spamnb.store import maintenance as audit

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "corpora" / "sample"
SOURCES = [(side, str(SAMPLE / side)) for side in ("ham", "spam")]
MADE = replace(new_recipe(), key=bytes(range(32)))


def mail(number, text="plum"):
    head = f"From: ann@a.example\nSubject: s{number}\nMessage-ID: <{number}@a.example>\n"
    return f"{head}\n{text} {number}\n".encode()


def folder_of(path, count, text):
    path.mkdir(parents=True)
    for number in range(count):
        (path / f"{number:04}").write_bytes(mail(f"{text}.{number}", text))
    return str(path)


def contents(home, *, words=True):
    """All contents of a model except the times of training."""
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        assert audit.check(view) == []
        ids, records = audit.collect(view.features(), len(model.labels))
        totals = view.totals()
        texts = [tuple(word) for word in view.all_words()] if words else []
        events = [
            (event.seq, event.kind, event.digest, event.after, event.delta.steps.tolist(),
             [group.tolist() for group in event.ids])
            for event in view.events()
        ]  # fmt: skip
    sums = (totals.messages, totals.tokens, totals.bias, totals.temperatures)
    rows = (ids, records.n, records.w)
    return [[np.asarray(x).tolist() for x in (*sums, *rows)], events, texts]


# --- order ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[5], [3, 3], [1, 9], [10, 5, 1], [4000, 1000], [0, 4], [7, 0, 2]]
)
def test_sources_are_interleaved_evenly(sizes):
    """At every step each source has the same progress as the whole, to within one message."""
    order = interleaved(sizes)
    assert np.bincount(order, minlength=len(sizes)).tolist() == sizes
    done = np.zeros(len(sizes))
    for place, source in enumerate(order.tolist(), 1):
        done[source] += 1
        assert (np.abs(done - np.array(sizes) * place / len(order)) <= 1.5).all()


def test_the_order_is_the_same_on_every_run():
    """Two runs over the same files use the same order."""
    assert interleaved([300, 77, 12]).tolist() == interleaved([300, 77, 12]).tolist()


def test_any_number_of_readers_leaves_the_same_model(tmp_path):
    """jobs=1 and jobs=2 agree on every event, number and text."""
    for jobs in (1, 2):
        train(
            tmp_path / str(jobs), SOURCES, recipe=MADE, training_options=TrainingOptions(jobs=jobs)
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


@pytest.mark.parametrize(("batch", "chunk"), [(64, 64), (192, 64), (2048, 128)])
def test_transactions_and_chunks_of_any_size_leave_the_same_model(
    tmp_path, monkeypatch, batch, chunk
):
    """The batch size changes only the speed."""
    train(tmp_path / "a", SOURCES, recipe=MADE)
    monkeypatch.setattr(bulk, "BATCH", batch)
    monkeypatch.setattr(bulk, "CHUNK", chunk)
    train(tmp_path / "b", SOURCES, recipe=MADE)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_interrupted_in_the_midst_of_a_chunk_what_was_read_is_learnt(tmp_path, monkeypatch):
    """Ctrl-C while the third batch is parsed: two batches are learnt, and nothing else."""
    reads, real = itertools.count(), bulk.read_unit

    def read(unit, **how):
        if next(reads) == 150:
            raise KeyboardInterrupt
        return real(unit, **how)

    monkeypatch.setattr(bulk, "read_unit", read)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "m", SOURCES, recipe=MADE, training_options=TrainingOptions(jobs=1))
    with Filter.open(tmp_path / "m", history=False) as model, model.store.read() as view:
        assert audit.check(view) == []
        assert len(list(view.events())) == 128


def test_an_interrupt_ends_the_transaction_as_it_is(tmp_path, monkeypatch):
    """Ctrl-C in a long transaction: parsed messages are learnt once, in the same transaction."""
    taken, take = [], LearningBatch.take

    def counted(learning_batch, requests, **how):
        taken.append(len(requests))
        return take(learning_batch, requests, **how)

    def press(now):
        if now.done == 256 and not taken[3:]:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(LearningBatch, "take", counted)
    monkeypatch.setattr(bulk, "CHUNK", 64)
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path / "m",
            SOURCES,
            recipe=MADE,
            training_options=TrainingOptions(jobs=2),
            progress=press,
        )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with Filter.open(tmp_path / "m", history=False) as model, model.store.read() as view:
        assert audit.check(view) == []
        assert len(list(view.events())) == sum(taken) == 256


def test_training_is_learning_one_by_one(tmp_path):
    """Bulk training gives the events and numbers of a Filter trained in the same order."""
    train(tmp_path / "a", SOURCES, recipe=MADE, training_options=TrainingOptions(jobs=2))
    by_digest = {}
    with Filter.open(tmp_path / "b", create=True, recipe=MADE, history=False) as model:
        for side, folder in SOURCES:
            for path in Path(folder).iterdir():
                raw = path.read_bytes()
                by_digest[model.example(raw).digest] = raw, side
        with Filter.open(tmp_path / "a", history=False) as other, other.store.read() as view:
            order = [event.digest for event in view.events()]
        for digest in order[:120]:
            model.learn(*by_digest[digest])
    with (
        Filter.open(tmp_path / "a", history=False) as one,
        Filter.open(tmp_path / "b", history=False) as other,
        one.store.read() as a,
        other.store.read() as b,
    ):
        for first, second in zip(a.events(1, 121), b.events(), strict=True):
            assert first.delta.steps.tolist() == second.delta.steps.tolist()
            assert first.delta.temperatures.tolist() == second.delta.temperatures.tolist()


# --- what is reported --------------------------------------------------------------------------


def test_the_summary_counts_what_was_done(tmp_path):
    """The summary has messages, learnt messages, counts by label and seconds; also as a dict."""
    seen = []
    summary = train(tmp_path / "m", SOURCES, recipe=MADE, progress=seen.append)
    assert (summary.messages, summary.learnt, summary.moved) == (400, 400, 0)
    assert summary.labels == {"ham": 200, "spam": 200}
    assert (summary.duplicates, summary.refused, summary.unreadable) == (0, 0, 0)
    assert summary.seconds > 0
    assert summary.cpu_seconds > 0
    assert summary.as_dict()["learnt"] == 400
    assert (seen[-1].done, seen[-1].total) == (400, 400)
    assert [one.done for one in seen] == sorted(one.done for one in seen)


def test_a_second_run_learns_nothing(tmp_path):
    """A second training finds only duplicates and changes no number."""
    train(tmp_path / "m", SOURCES, recipe=MADE)
    before = contents(tmp_path / "m")
    again = train(tmp_path / "m", SOURCES)
    assert (again.learnt, again.duplicates, again.moved) == (0, 400, 0)
    assert contents(tmp_path / "m") == before


def test_a_training_leaves_few_free_pages(tmp_path, monkeypatch):
    """The free pages of a second training are removed, so that later trainings stay fast."""
    monkeypatch.setattr(maintenance, "LEAST_FREE", 0)

    def many_words(name, count):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(count):
            words = " ".join(f"{name}w{number}x{n}" for n in range(400))
            (folder / f"{number}").write_bytes(mail(f"{name}.{number}", words))
        return str(folder)

    # A small training touches most pages of a model that was made by a large one.
    parts = [
        [(side, many_words(f"{side}{turn}", count)) for side in ("ham", "spam")]
        for turn, count in enumerate((60, 6, 6))
    ]

    def pages(home):
        with Filter.open(home, readonly=True, history=False) as model:
            environment = model.store.environment
            return environment.pages(), environment.live_pages()

    for sources in parts:
        train(tmp_path / "trimmed", sources, recipe=MADE)
        file, live = pages(tmp_path / "trimmed")
        assert file <= 1.5 * live
        with Filter.open(tmp_path / "held", create=True, recipe=MADE, history=False):
            # Another process has this one open, so its file stays.
            train(tmp_path / "held", sources)
    file, live = pages(tmp_path / "held")
    assert file > 1.5 * live
    assert contents(tmp_path / "trimmed") == contents(tmp_path / "held")


def test_the_origin_is_in_every_event(tmp_path):
    """The journal names the person that trained."""
    source = folder_of(tmp_path / "ham", 3, "plum")
    training_options = TrainingOptions(source=Source(user="ann", channel="train"))
    train(tmp_path / "m", [("ham", source)], recipe=MADE, training_options=training_options)
    with Filter.open(tmp_path / "m") as model, model.store.read() as view:
        assert {(e.user, e.channel) for e in view.events()} == {("ann", "train")}


def test_a_message_in_both_folders_is_moved(tmp_path):
    """The later label applies, and the message is counted once."""
    for side in ("ham", "spam"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "same").write_bytes(mail(1))
    sources = [(side, str(tmp_path / side)) for side in ("ham", "spam")]
    summary = train(tmp_path / "m", sources, recipe=MADE)
    assert (summary.learnt, summary.moved) == (1, 1)
    with Filter.open(tmp_path / "m") as model, model.store.read() as view:
        assert view.totals().messages.sum() == 1


# --- sources -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 300], ids=["in this process", "by readers"])
def test_unreadable_files_are_counted_and_skipped(tmp_path, count):
    """Unreadable messages are reported with path and reason; the others are learnt."""
    ham = folder_of(tmp_path / "ham", count, "plum")
    (tmp_path / "ham/empty").touch()
    (tmp_path / "ham/photo").write_bytes(b"\xff\xd8\xff\xe0" * 300)
    (tmp_path / "ham/broken").symlink_to("/proc/self/mem")
    summary = train(
        tmp_path / "m", [("ham", ham)], recipe=MADE, training_options=TrainingOptions(jobs=2)
    )
    assert (summary.learnt, summary.unreadable) == (count, 3)
    paths = sorted(summary.unreadable_paths)
    assert [line.partition(": ")[0] for line in paths] == [
        f"{ham}/{name}" for name in ("broken", "empty", "photo")
    ]
    assert all(line.partition(": ")[2] for line in paths)
    contents(tmp_path / "m")


def test_a_file_without_permission_is_skipped(tmp_path):
    """Without read permission a message is reported; the others are learnt."""
    folder_of(tmp_path / "ham", 3, "plum")
    (tmp_path / "ham/0001").chmod(0)
    tmp_path.chmod(0o777)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from spamnb.engine.filter import new_recipe\n"
        "from spamnb.engine.bulk import train\n"
        "from spamnb.cli.import_ahead import import_ahead\n"
        "import_ahead()\n"
        "os.chdir(sys.argv[1])\n"
        "if os.geteuid() == 0:\n"
        "    os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)\n"
        "done = train(Path('m'), [('ham', 'ham')], recipe=new_recipe())\n"
        "print(done.learnt, done.unreadable, *done.unreadable_paths)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        cwd=PROJECT, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert child.stdout == "2 1 ham/0001: Permission denied\n", child.stderr


def test_mbox_maildir_and_folders_give_the_same_model(tmp_path):
    """The storage format and LF or CRLF do not change digests and counts."""
    raws = [mail(n, ("plum", "fig")[n % 2]) for n in range(12)]
    tree = tmp_path / "tree"
    for number, raw in enumerate(raws):
        path = tree / ("deep/er" * (number % 3)) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw if number % 2 else raw.replace(b"\n", b"\r\n"))
    box = mailbox.mbox(tmp_path / "box")
    maildir = mailbox.Maildir(tmp_path / "maildir")
    for raw in raws:
        box.add(raw)
        maildir.add(raw)
    box.close()
    crlf = tmp_path / "crlf"
    crlf.write_bytes((tmp_path / "box").read_bytes().replace(b"\n", b"\r\n"))
    found = []
    for kept in ("tree", "box", "maildir", "crlf"):
        summary = train(tmp_path / f"m-{kept}", [("ham", str(tmp_path / kept))], recipe=MADE)
        assert summary.learnt == 12, kept
        numbers, events, _ = contents(tmp_path / f"m-{kept}")
        found.append((numbers[:2], numbers[4:6], sorted(event[2] for event in events)))
    assert found[1:] == found[:1] * 3


def test_one_folder_for_both_labels_is_refused(tmp_path):
    """The same path under another name is refused before a model is made."""
    ham = folder_of(tmp_path / "ham", 3, "plum")
    (tmp_path / "link").symlink_to(ham)
    for other in (ham, f"{ham}/", str(tmp_path / "link"), f"{ham}/../ham"):
        with pytest.raises(CorpusError):
            train(tmp_path / "m", [("ham", ham), ("spam", other)], recipe=MADE)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_source_without_mail_is_refused_before_a_model_is_made(tmp_path, what):
    """A wrong path raises CorpusError immediately."""
    (tmp_path / "empty").mkdir()
    ham = folder_of(tmp_path / "ham", 3, "plum")
    with pytest.raises(CorpusError, match=what):
        train(tmp_path / "m", [("ham", ham), ("spam", str(tmp_path / what))], recipe=MADE)
    assert not (tmp_path / "m").exists()


def test_an_unknown_label_and_a_missing_model_are_errors(tmp_path):
    """An unknown label or a missing model raises an error."""
    ham = folder_of(tmp_path / "ham", 3, "plum")
    with pytest.raises(StoreMissingError):
        train(tmp_path / "m", [("ham", ham)])
    with pytest.raises(LabelError):
        train(tmp_path / "m", [("junk", ham)], recipe=MADE)


def test_other_labels_can_be_trained(tmp_path):
    """Three labels from three folders."""
    made = new_recipe(labels=("ham", "spam", "list"))
    sources = [(name, folder_of(tmp_path / name, 4, name)) for name in made.labels]
    assert train(tmp_path / "m", sources, recipe=made).labels == {"ham": 4, "spam": 4, "list": 4}


# --- words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_known_feature_has_its_text(tmp_path, jobs):
    """With a vocabulary, every feature has its word, from any worker."""
    train(tmp_path / "m", SOURCES, recipe=MADE, training_options=TrainingOptions(jobs=jobs))
    with Filter.open(tmp_path / "m") as model, model.store.read() as view:
        known = [i for ids, records in view.features() for i in ids[records.n.any(axis=1)].tolist()]
        words = {word.id: word for word in view.all_words()}
        assert set(known) == set(words)
        assert all(word.text for word in words.values())


def test_without_a_vocabulary_no_text_is_stored(tmp_path):
    """A model without a vocabulary has no words and the same scores."""
    train(tmp_path / "with", SOURCES, recipe=MADE, training_options=TrainingOptions(jobs=2))
    train(tmp_path / "without", SOURCES, recipe=replace(MADE, vocabulary=False))
    assert contents(tmp_path / "without")[2] == []
    assert contents(tmp_path / "without")[:2] == contents(tmp_path / "with")[:2]


def test_a_model_may_be_moved_between_trainings(tmp_path):
    """A copied model folder can be trained further."""
    train(tmp_path / "m", SOURCES[:1], recipe=MADE)
    shutil.copytree(tmp_path / "m", tmp_path / "n")
    assert train(tmp_path / "n", SOURCES).learnt == 200
