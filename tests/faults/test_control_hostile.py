"""The control socket of a real learner: odd requests, and backups while corrections flow."""

import json
import random
import threading

from support.learner import mail

from spamnb.engine.filter import Filter
from spamnb.feedback.values import Feedback
from spamnb.operations.protocol import Frames, connected
from spamnb.operations.table import OPERATIONS
from spamnb.store.codec import encode_event
from spamnb.store.maintenance import backup, restore

ODD = [
    None, True, 0, -1, 1 << 62, 1 << 63, 10**300, 1e308, float("nan"), "", "x", "ham", "spam",
    "\ud800", "\0", "a" * 60_000, "imap", "trap", "user", "stranger", "accept", "show", "../../x",
    [], ["x"], ["\ud800"], ["\0"], [1], [[]], [-1], ["s" + "a" * 26], ["0" * 32], {}, {"a": 1},
]  # fmt: skip
BODIES = [b"", b"x", b"\0" * 100, b'{"a":1}\n', b"Subject: a\n\nb", b"From: a\xff\n\n\xff" * 50]


def test_no_values_of_fields_are_an_internal_error(running):
    """Every operation answers what a caller may send, and the model stays sound."""
    dice = random.Random(5)
    for number in range(300):
        name = list(OPERATIONS)[number % len(OPERATIONS)]
        fields = {one.name: dice.choice(ODD) for one in OPERATIONS[name].parameters}
        fields = {field: value for field, value in fields.items() if dice.random() < 0.6}
        body = dice.choice(BODIES)
        frames = Frames(connected(running.path, 30))
        head = json.dumps({"op": name, "channel": "imap", **fields, "bytes": len(body)})
        frames.connection.sendall(head.encode() + b"\n" + body)
        reply = frames.line(30, 30)
        frames.connection.close()
        assert reply is not None, (name, fields)
        assert "incident" not in reply.get("error", ""), (name, fields, reply)


def journal(home):
    """The events of a model, by number, as bytes."""
    with Filter.open(home, readonly=True, history=False) as model, model.store.read() as view:
        return {event.seq: encode_event(event) for event in view.events()}


def test_a_backup_while_corrections_flow_is_a_state_of_the_journal(running, place):
    """Each backup has the first events of the journal and no others, and is sound."""
    ended = threading.Event()

    def correct(first):
        with running.caller() as caller:
            for number in range(first, first + 1000):
                if ended.is_set():
                    return
                label = "spam" if number % 2 else "ham"
                caller.teach(Feedback(label, mail(number), trust="admin"))

    threads = [threading.Thread(target=correct, args=(1000 * number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(5):
        backup(running.home, place / f"{number}.backup")
    ended.set()
    for thread in threads:
        thread.join()
    final = journal(running.home)
    for number in range(5):
        restore(place / f"{number}.backup", place / f"restored-{number}")
        found = journal(place / f"restored-{number}")
        assert found == {seq: event for seq, event in final.items() if seq <= len(found)}
