"""docs/teaching.md keeps its word: what it shows of the socket and the tables is so."""

import re
import socket
import threading
from pathlib import Path
from typing import get_args

from spamnb.feedback.rights import CHANNEL_POLICIES
from spamnb.feedback.values import State
from spamnb.operations.table import OPERATIONS

TEXT = (Path(__file__).parents[2] / "docs" / "teaching.md").read_text()


def test_every_operation_channel_and_state_is_documented():
    """The tables of the document are those of the code."""
    for name in get_args(State):
        assert f"`{name}`" in TEXT, name
    for name, way in CHANNEL_POLICIES.items():
        assert re.search(rf"\| [\w, ]*\b{name}\b[\w, ]* \| {way.weight:g} \|", TEXT), name


def test_the_table_of_operations_has_the_right_for_each():
    """Each operation has one row, with the right that it needs."""
    table = TEXT[TEXT.index("| op | allowed for |") :].split("\n\n")[0].splitlines()[2:]
    only_admins = {}
    for _, names, right, _ in (row.split("|") for row in table):
        only_admins |= dict.fromkeys(re.findall(r"`(\w+)`", names), right.strip() == "admins")
    assert only_admins == {name: one.right == "admins" for name, one in OPERATIONS.items()}


def test_the_client_in_the_document_works_with_the_protocol(tmp_path):
    """Isolated Python with the standard library alone: the document's own lines are run."""
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    scope = {}
    exec(compile(code, "teaching.md", "exec"), scope)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "c"))
    listener.listen()
    heard = []

    def serve():
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            heard.append(lines.readline())
            heard.append(lines.read(5))
            connection.sendall(b'{"ok":true,"state":"learnt"}\n')

    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        answer = scope["teach"](str(tmp_path / "c"), "spam", b"Sub\n\n", "alice@example.org")
        thread.join()
    assert answer["state"] == "learnt"
    assert b'"for": "alice@example.org"' in heard[0]
    assert heard[1] == b"Sub\n\n"
