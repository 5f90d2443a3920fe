"""Plain text documents that are no mail, and the layouts in which collections of them come.

Three layouts are known: a folder for each label (as the 20 newsgroups are laid out, also as a pair
of folders that end in `train` and `test`); a file `cats.txt` beside the folders `training` and
`test` (Reuters as the language toolkits ship it); SGML files with TOPICS and LEWISSPLIT (Reuters as
it was published; the ModApte split is taken). A document may have several labels, or none. Must
not know models. Failure: CorpusError for a place where no document is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from spamnb.errors import CorpusError

Split = Literal["train", "test", ""]


class Document(NamedTuple):
    """A document, what it is about, and whether it is to learn from or to be judged."""

    name: str
    raw: bytes
    labels: tuple[str, ...]
    split: Split = ""
    """empty: the collection does not say"""


def documents(path: str | Path) -> list[Document]:
    """Every document under a path, by whichever layout it has, in a fixed order."""
    folder = Path(path)
    if not folder.is_dir():
        raise CorpusError(f"no such folder: {path}", hint="name the folder of the collection")
    for is_so, read in _LAYOUTS:
        if is_so(folder):
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


def _halves(folder: Path) -> dict[Split, Path]:
    """The two folders of a collection that comes divided."""
    found: dict[Split, Path] = {}
    for path in _folders(folder):
        for split in ("train", "test"):
            if path.name.endswith(split):
                found[split] = path
    return found if len(found) == 2 == len(_folders(folder)) else {}


def _divided(folder: Path) -> Iterator[Document]:
    for split, half in _halves(folder).items():
        yield from _by_folder(half, split)


def _by_folder(folder: Path, split: Split = "") -> Iterator[Document]:
    for group in _folders(folder):
        for path in sorted(group.rglob("*")):
            if path.is_file():
                name = str(path.relative_to(folder))
                yield Document(name, path.read_bytes(), (group.name,), split)


def _by_list(folder: Path) -> Iterator[Document]:
    """Each line of cats.txt: the file's place, then its labels."""
    for line in (folder / "cats.txt").read_text("latin-1").splitlines():
        name, *labels = line.split()
        split: Split = "train" if name.startswith("train") else "test"
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise CorpusError(f"cats.txt names {name}, which is not there")
        yield Document(name, path.read_bytes(), tuple(labels), split)


_STORY = re.compile(rb"<REUTERS([^>]*)>(.*?)</REUTERS>", re.DOTALL)
_TOPICS = re.compile(rb"<TOPICS>(.*?)</TOPICS>", re.DOTALL)
_TOPIC = re.compile(rb"<D>(.*?)</D>")
_WHOLE = re.compile(rb"<TEXT[^>]*>(.*?)</TEXT>", re.DOTALL)
_TEXT = re.compile(rb"<(TITLE|BODY)>(.*?)</\1>", re.DOTALL)
_MODAPTE: dict[str, Split] = {"TRAIN": "train", "TEST": "test"}


def _by_markup(folder: Path) -> Iterator[Document]:
    """ModApte: stories that were given topics by people, in Lewis's two halves."""
    for path in sorted(folder.glob("*.sgm")):
        for head, body in _STORY.findall(path.read_bytes()):
            about = dict(re.findall(r'(\w+)="([^"]*)"', head.decode("latin-1")))
            split = _MODAPTE.get(about.get("LEWISSPLIT", ""))
            if split is None or about.get("TOPICS") != "YES":
                continue
            topics = _TOPICS.search(body)
            named = _TOPIC.findall(topics[1]) if topics else []
            labels = tuple(topic.decode("latin-1") for topic in named)
            name = f"{path.name}#{about.get('NEWID', '')}"
            yield Document(name, _told(body).encode(), labels, split)


def _told(body: bytes) -> str:
    """Title and body; of a story that has neither (TYPE="UNPROC") all of its text."""
    parts = [text for _, text in _TEXT.findall(body)] or _WHOLE.findall(body)
    return "\n".join(html.unescape(text.decode("latin-1")) for text in parts)


_LAYOUTS: tuple[tuple[Callable[[Path], object], Callable[[Path], Iterator[Document]]], ...] = (
    (lambda folder: (folder / "cats.txt").is_file(), _by_list),
    (lambda folder: next(folder.glob("*.sgm"), None), _by_markup),
    (_halves, _divided),
    (_folders, _by_folder),
)
