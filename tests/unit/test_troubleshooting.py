"""docs/troubleshooting.md has the sentences that the program says."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "docs" / "troubleshooting.md"


def said():
    """Each text of the source; the places of values in it are an ellipsis."""
    for path in (PROJECT / "spamnb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(part, "value", "") for part in node.values)
                yield "".join(part if isinstance(part, str) else "\0" for part in parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_program_says_each_sentence_of_the_table():
    """A sentence that is changed in one place alone is found here."""
    section = PAGE.read_text("utf-8").partition("## Mail and filing")[2]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    sentences = [one for row in rows[:-1] for one in re.findall("`([^`]+)`", row)]
    texts = list(said())
    assert len(sentences) > len(rows) - 2 > 5
    for sentence in sentences:
        pieces = [re.escape(piece.strip(", ")) for piece in sentence.split("…")]
        pattern = re.compile("[^.]*".join(pieces), re.DOTALL)
        assert any(pattern.search(text) for text in texts), sentence
