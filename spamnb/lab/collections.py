"""Read collections of plain text documents (not mail) in their published layouts.

Three layouts are supported: one folder per label (20 newsgroups; also a pair of such folders with
names that end in `train` and `test`); a file `cats.txt` beside the folders `training` and `test`
(Reuters as NLTK ships it); SGML files with TOPICS and LEWISSPLIT (Reuters as published, ModApte
split). A document may have several labels or none. Must not know models. Failure: CorpusError for
a folder without documents.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from spamnb.errors import CorpusError
from spamnb.lab.sources import as_given, by_time, read_each, shuffled
from spamnb.service.training.sources import units

Split = Literal["train", "test", ""]


class Document(NamedTuple):
    """One document with its labels and its part of the collection."""

    name: str
    raw: bytes
    labels: tuple[str, ...]
    split: Split = ""
    """empty: the collection defines no split"""


class Collection(NamedTuple):
    """Documents with their labels, in order; the last `tested` of them are the test documents."""

    documents: list[tuple[bytes, tuple[str, ...]]]
    tested: int = 0


def labelled(
    sources: Sequence[tuple[str, str]],
    order: str,
    seed: int,
    warn: Callable[[str], None],
    *,
    plain: bool,
) -> Collection:
    """Read the documents of (label, path) sources; `order` is shuffle, time or given."""
    found = [
        (unit.name.rpartition("/")[2], pair)
        for label, path in sources
        for unit in units(path, documents=plain)
        for pair in read_each([(unit, label)], warn, documents=plain)
    ]
    if order == "time":
        ordered = by_time(found)
    else:
        ordered = as_given(found) if order == "given" else shuffled(found, seed)
    return Collection([(raw, (label,)) for raw, label in ordered])


def collection_of(path: str, seed: int) -> Collection:
    """Read a collection by its layout; training and test documents are shuffled separately."""
    found = documents(path)

    def mixed(part: list[Document]) -> list[tuple[bytes, tuple[str, ...]]]:
        rows = [(one.name, (one.raw, "\0".join(one.labels))) for one in part]
        pairs = shuffled(rows, seed)
        return [(raw, tuple(labels.split("\0")) if labels else ()) for raw, labels in pairs]

    test = [one for one in found if one.split == "test"]
    learn = [one for one in found if one.split != "test"]
    return Collection(mixed(learn) + mixed(test), len(test))


def documents(path: str | Path) -> list[Document]:
    """Return all documents under a path in a fixed order; the layout is detected."""
    folder = Path(path)
    if not folder.is_dir():
        raise CorpusError(f"no such folder: {path}", hint="name the folder of the collection")
    for matches, read in _LAYOUTS:
        if matches(folder):
            found = list(read(folder))
            break
    else:
        found = []
    if not found:
        raise CorpusError(
            f"no documents in {path}",
            hint="a folder for each label, or cats.txt with training/ and test/, or *.sgm files",
        )
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _train_test_folders(folder: Path) -> dict[Split, Path]:
    """The two folders of a split collection; empty unless there are exactly these two."""
    found: dict[Split, Path] = {}
    for path in _folders(folder):
        for split in ("train", "test"):
            if path.name.endswith(split):
                found[split] = path
    return found if len(found) == 2 == len(_folders(folder)) else {}


def _by_train_test(folder: Path) -> Iterator[Document]:
    for split, part in _train_test_folders(folder).items():
        yield from _by_folder(part, split)


def _by_folder(folder: Path, split: Split = "") -> Iterator[Document]:
    for group in _folders(folder):
        for path in sorted(group.rglob("*")):
            if path.is_file():
                name = str(path.relative_to(folder))
                yield Document(name, path.read_bytes(), (group.name,), split)


def _by_list(folder: Path) -> Iterator[Document]:
    """Each line of cats.txt is a file's path, then its labels."""
    for line in (folder / "cats.txt").read_text("latin-1").splitlines():
        name, *labels = line.split()
        split: Split = "train" if name.startswith("train") else "test"
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise CorpusError(f"cats.txt names {name}, which does not exist below {folder}")
        yield Document(name, path.read_bytes(), tuple(labels), split)


_STORY = re.compile(rb"<REUTERS([^>]*)>(.*?)</REUTERS>", re.DOTALL)
_TOPICS = re.compile(rb"<TOPICS>(.*?)</TOPICS>", re.DOTALL)
_TOPIC = re.compile(rb"<D>(.*?)</D>")
_ALL_TEXT = re.compile(rb"<TEXT[^>]*>(.*?)</TEXT>", re.DOTALL)
_TEXT = re.compile(rb"<(TITLE|BODY)>(.*?)</\1>", re.DOTALL)
_MODAPTE: dict[str, Split] = {"TRAIN": "train", "TEST": "test"}


def _by_markup(folder: Path) -> Iterator[Document]:
    """ModApte split: only stories with TOPICS="YES"; train and test by LEWISSPLIT."""
    for path in sorted(folder.glob("*.sgm")):
        for head, body in _STORY.findall(path.read_bytes()):
            attributes = dict(re.findall(r'(\w+)="([^"]*)"', head.decode("latin-1")))
            split = _MODAPTE.get(attributes.get("LEWISSPLIT", ""))
            if split is None or attributes.get("TOPICS") != "YES":
                continue
            topics = _TOPICS.search(body)
            named = _TOPIC.findall(topics[1]) if topics else []
            labels = tuple(topic.decode("latin-1") for topic in named)
            name = f"{path.name}#{attributes.get('NEWID', '')}"
            yield Document(name, _story_text(body).encode(), labels, split)


def _story_text(body: bytes) -> str:
    """Title and body; for a story with neither (TYPE="UNPROC"), all of its text."""
    parts = [text for _, text in _TEXT.findall(body)] or _ALL_TEXT.findall(body)
    return "\n".join(html.unescape(text.decode("latin-1")) for text in parts)


_LAYOUTS: tuple[tuple[Callable[[Path], object], Callable[[Path], Iterator[Document]]], ...] = (
    (lambda folder: (folder / "cats.txt").is_file(), _by_list),
    (lambda folder: next(folder.glob("*.sgm"), None), _by_markup),
    (_train_test_folders, _by_train_test),
    (_folders, _by_folder),
)
