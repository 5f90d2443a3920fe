"""A message from DATA to 250 through relay, scanner and model: each step is done once."""

import sys
from collections import Counter

import pytest
from support.relay import Rig
from support.scanning import raws, scanner_deps

from spamnb.engine.filter import Filter
from spamnb.mail.envelope import Envelope
from spamnb.policy import headers
from spamnb.scan import access_lists
from spamnb.scan.judge import ModelSession, SessionConfig
from spamnb.scan.scanner import Scanner, ScanPolicy
from spamnb.smtp import syntax

ONCE = {
    headers.header_end.__code__: 1,
    headers.remove_forged.__code__: 1,
    headers.add_to_message.__code__: 0,
    syntax.unstuffed.__code__: 1,
    Envelope.__init__.__code__: 1,
    syntax.path_of.__code__: 2,  # the sender and one recipient
}
LISTS = access_lists.AccessLists(
    allow=access_lists.parse("sender boss@example.org", "allow"),
    block=access_lists.parse("domain spam.example", "block"),
)


@pytest.fixture
def home(tmp_path):
    with Filter.open(tmp_path / "model", create=True) as model:
        for label in ("ham", "spam"):
            for raw in raws(label, 0, 30):
                model.learn(raw, label)
    return tmp_path / "model"


def test_header_dots_and_envelope_are_read_once(on_loop, home):
    """With a forged copy, stuffed dots in header and body, and access lists in force."""
    body = raws("ham", 31, 32)[0]
    wire = b".X-Spam-Flag: NO\r\nSubject: a\r\n.. b\r\n" + body + b"\r\n..dot\r\n.\r\n"
    calls = Counter()

    def count(frame, event, _):
        if event == "call" and frame.f_code in ONCE:
            calls[frame.f_code] += 1

    async def main():
        model_session = ModelSession(SessionConfig(home))
        model_session.prepare()
        scanner = Scanner(model_session, ScanPolicy(), scanner_deps(model_session, rules=LISTS))
        async with Rig({}, scanner) as rig:
            client = await rig.client()
            sys.setprofile(count)
            try:
                await client.start()
                reply = await client.ask(wire)
            finally:
                sys.setprofile(None)
            assert reply.startswith(b"250")
            (message,) = rig.server.messages
        assert message.startswith(b"X-Spam-Flag: ")
        assert message.count(b"X-Spam-Flag") == 1
        assert message.endswith(wire[18 : -len(b".\r\n")])
        assert {code.co_name: calls[code] for code in ONCE} == {
            code.co_name: times for code, times in ONCE.items()
        }
        model_session.close()

    on_loop(main())
