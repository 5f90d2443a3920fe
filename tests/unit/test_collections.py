"""Plain documents: the layouts of collections, and a model that reads no mail."""

import documentcraft
import pytest

from spamnb.engine.bulk import train
from spamnb.engine.filter import Filter, new_recipe
from spamnb.engine.mailboxes import Unreadable, read_unit, units
from spamnb.errors import CorpusError
from spamnb.lab.labels import documents
from spamnb.mail.message import read_document, text_of

STORY = (
    '<REUTERS TOPICS="{topics}" LEWISSPLIT="{split}" CGISPLIT="X" OLDID="1" NEWID="{number}">\n'
    "<DATE>26-FEB-1987</DATE>\n<TOPICS>{named}</TOPICS>\n<PLACES><D>usa</D></PLACES>\n"
    "<TEXT>&#2;\n<TITLE>{title}</TITLE>\n<BODY>Text &lt;about&gt; it.\n&#3;</BODY></TEXT>\n"
    "</REUTERS>\n"
)


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def seen(folder):
    return [(one.name, one.labels, one.split) for one in documents(folder)]


def test_a_folder_for_each_label(tmp_path):
    """The 20 newsgroups: the name of the folder is the label."""
    write(tmp_path, {"sci.med/101": "a", "rec.autos/7": "b", "rec.autos/8": "c"})
    assert seen(tmp_path) == [
        ("rec.autos/7", ("rec.autos",), ""),
        ("rec.autos/8", ("rec.autos",), ""),
        ("sci.med/101", ("sci.med",), ""),
    ]


def test_two_folders_that_come_divided(tmp_path):
    """20news-bydate: the folders that end in train and test give the split."""
    write(tmp_path, {"20news-bydate-train/a/1": "x", "20news-bydate-test/a/2": "y"})
    assert seen(tmp_path) == [("a/2", ("a",), "test"), ("a/1", ("a",), "train")]


def test_reuters_with_a_list(tmp_path):
    """cats.txt: a document may have several labels; the list is the order."""
    write(tmp_path, {"cats.txt": "test/1 grain wheat\ntraining/2 trade\n", "test/1": "x",
                     "training/2": "y"})  # fmt: skip
    assert seen(tmp_path) == [("test/1", ("grain", "wheat"), "test"),
                              ("training/2", ("trade",), "train")]  # fmt: skip
    write(tmp_path, {"cats.txt": "test/../../etc/passwd trade\n"})
    with pytest.raises(CorpusError, match="does not exist"):
        documents(tmp_path)


def test_reuters_as_it_was_published(tmp_path):
    """ModApte: only stories with TOPICS="YES", split by LEWISSPLIT; places are no labels."""
    made = [
        STORY.format(
            topics="YES", split="TRAIN", number=1, title="A", named="<D>grain</D><D>oat</D>"
        ),
        STORY.format(topics="NO", split="TRAIN", number=2, title="B", named=""),
        STORY.format(topics="YES", split="NOT-USED", number=3, title="C", named="<D>gold</D>"),
        STORY.format(topics="YES", split="TEST", number=4, title="D", named=""),
    ]
    write(tmp_path, {"reut2-000.sgm": "<!DOCTYPE lewis>\n" + "".join(made)})
    assert seen(tmp_path) == [
        ("reut2-000.sgm#1", ("grain", "oat"), "train"),
        ("reut2-000.sgm#4", (), "test"),
    ]
    assert b"Text <about> it." in documents(tmp_path)[0].raw


def test_reuters_stories_without_a_body(tmp_path):
    """Stories without title and body, briefs, and accents, as in the published files."""
    head = '<REUTERS TOPICS="YES" LEWISSPLIT="TRAIN" CGISPLIT="TRAINING-SET" OLDID="5" NEWID="{}">'
    head += "\n<DATE>26-FEB-1987 15:01:01.79</DATE>"
    head += "<TOPICS><D>earn</D></TOPICS><UNKNOWN>&#5;</UNKNOWN>"
    texts = (
        '<TEXT TYPE="UNPROC">&#2;\n QTLY DIV 5 CTS &lt;ABC>\n PAY MARCH 9\n</TEXT>',
        '<TEXT TYPE="BRIEF">&#2;<TITLE>AMR &amp; UAL RISE</TITLE>Blah\n</TEXT>',
        "<TEXT><TITLE>Caf\u00e9</TITLE><DATELINE> PARIS - </DATELINE><BODY>x\n</BODY></TEXT>",
    )
    stories = [f"{head.format(n)}{text}\n</REUTERS>\n" for n, text in enumerate(texts)]
    sgml = '<!DOCTYPE lewis SYSTEM "lewis.dtd">\n' + "".join(stories)
    (tmp_path / "reut2-017.sgm").write_bytes(sgml.encode("latin-1"))
    unproc, brief, accents = (one.raw.decode() for one in documents(tmp_path))
    assert "QTLY DIV 5 CTS <ABC>" in unproc
    assert brief == "AMR & UAL RISE"
    assert accents == "Caf\u00e9\nx\n"


def test_newsgroup_articles_as_they_come(tmp_path):
    """20 newsgroups: articles with headers are texts, their whole bytes; odd bytes are no error."""
    article = b"From: a@b.edu (A)\nSubject: Re: \xe9tude\nLines: 2\n\n>>quoted\ntext\n"
    for number, group in ((51060, "alt.atheism"), (102, "talk.religion.misc")):
        (tmp_path / "20_newsgroups" / group).mkdir(parents=True)
        (tmp_path / "20_newsgroups" / group / str(number)).write_bytes(article)
    found = documents(tmp_path / "20_newsgroups")
    assert [one.labels for one in found] == [("alt.atheism",), ("talk.religion.misc",)]
    assert {one.raw for one in found} == {article}


@pytest.mark.parametrize("made", [{}, {"a.txt": "loose"}])
def test_a_place_without_documents_is_the_users_mistake(tmp_path, made):
    """A folder of unknown layout is refused; the hint names the known layouts."""
    write(tmp_path, made)
    with pytest.raises(CorpusError, match="no documents"):
        documents(tmp_path)
    with pytest.raises(CorpusError, match="no such folder"):
        documents(tmp_path / "missing")


def test_a_document_is_its_bytes():
    """The digest is of the bytes; the text is decoded with the detected charset."""
    assert read_document(b"a").digest != read_document(b"a\n").digest
    assert read_document(b"a").message_id == ""
    assert text_of("Übergrößenträger für Möbel".encode("latin-1")) == "Übergrößenträger für Möbel"
    assert text_of(b"plain") == "plain"


def test_any_text_is_a_document_but_no_mail(tmp_path):
    """Plain documents need no header, and a line `From ` does not split them."""
    path = tmp_path / "x"
    path.write_text("From here on\n\nFrom 10:00 to 11:00 nothing\n")
    (unit,) = units(str(path), documents=True)
    assert not isinstance(read_unit(unit, documents=True), Unreadable)
    assert isinstance(read_unit(unit), Unreadable)
    path.write_bytes(b"\x7fELF\0\0")
    assert isinstance(read_unit(unit, documents=True), Unreadable)


def test_a_model_of_documents_from_end_to_end(tmp_path):
    """A model of plain documents trains on folders, scores, explains, and can be corrected."""
    for text, label in documentcraft.collection(150, 3):
        place = tmp_path / label
        place.mkdir(exist_ok=True)
        (place / f"{len(list(place.iterdir()))}.txt").write_text(text)
    labels = sorted(path.name for path in tmp_path.iterdir())
    sources = [(label, str(tmp_path / label)) for label in labels]
    train(tmp_path / "model", sources, recipe=new_recipe(labels=labels, documents=True))
    with Filter.open(tmp_path / "model") as model:
        assert model.recipe.documents
        text = next(t for t, label in documentcraft.collection(50, 4) if label == "trade").encode()
        verdict = model.score(text)
        assert verdict.label in labels
        clues = verdict.clues()
        assert {clue.location for clue in clues} == {"word", "self"}
        assert sum(c.nats for c in clues) + verdict.bias == pytest.approx(verdict.log_odds)
        model.correct(text, "weather")
        assert model.score(text).label == "weather"
        model.forget(text)
        assert model.score(text).log_odds == pytest.approx(verdict.log_odds)
