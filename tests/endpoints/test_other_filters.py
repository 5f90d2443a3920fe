"""Other filters are asked in their own protocols; what they answer is a mark, or an error."""

import json
import socket
import threading

import pytest
from support.other_filters import (
    GTUBE,
    TESTS_OF_RSPAMD,
    needs_rspamd,
    needs_spamd,
    rspamd,
    spamd,
)

from spamnb.errors import PeerError, UserError
from spamnb.mail.other_filters import FilterMark
from spamnb.scan import other_filters as module
from spamnb.scan.other_filters import asker_of

HEAD = b"From: ann@a.example\r\nTo: bob@b.example\r\nSubject: plums\r\n\r\n"


@pytest.fixture(scope="module")
def real_rspamd(tmp_path_factory):
    with rspamd(tmp_path_factory.mktemp("rspamd")) as port:
        yield f"rspamd:127.0.0.1:{port}"


@needs_rspamd
def test_the_real_rspamd_is_asked(real_rspamd):
    """Its actions are verdicts; its score, threshold and tests are read."""
    ask = asker_of(real_rspamd)
    plain = ask(HEAD + b"fresh plums\r\n")
    assert plain.verdict == "ham"
    for text in TESTS_OF_RSPAMD.values():
        mark = ask(HEAD + text + b"\r\n")
        assert mark.verdict == "spam"
        assert "GTUBE" in mark.tests
    assert mark.required == 15.0


@needs_spamd
def test_the_real_spamd_is_asked(tmp_path):
    """Its verdict, score, threshold and tests are read."""
    with spamd(tmp_path) as port:
        ask = asker_of(f"spamd:127.0.0.1:{port}")
        plain, spam = ask(HEAD + b"fresh plums\r\n"), ask(HEAD + GTUBE + b"\r\n")
    assert (plain.verdict, plain.required) == ("ham", 5.0)
    assert "NO_RECEIVED" in plain.tests
    assert spam.verdict == "spam"
    assert spam.score > 900
    assert "GTUBE" in spam.tests


class Peer:
    """A server that reads one request and sends what it was given."""

    def __init__(self, reply, *, stays=False):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.request, self._reply, self._stays = b"", reply, stays
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        client, _ = self._server.accept()
        with client:
            while b"plums" not in self.request:
                self.request += client.recv(65_536)
            client.sendall(self._reply)
            if self._stays:
                self._end.wait()

    def close(self):
        self._end.set()
        self._thread.join()
        self._server.close()


@pytest.fixture
def peer():
    made = []

    def make(reply, **more):
        made.append(Peer(reply, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def http(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


SPAMD_REPLY = (
    b"SPAMD/1.1 0 EX_OK\r\nContent-length: 24\r\nSpam: True ; 7.5 / 5.0\r\n\r\n"
    b"BAYES_99,HTML_MESSAGE\r\n"
)
RSPAMD_REPLY = {"action": "add header", "score": 7.5, "required_score": 15, "symbols": {"A_B": {}}}


def test_spamd_is_asked_for_its_tests(peer):
    """The request has the message and its length; the reply's score and tests are read."""
    one = peer(SPAMD_REPLY)
    mark = asker_of(f"spamd:127.0.0.1:{one.port}")(HEAD + b"plums")
    assert mark == FilterMark("spam", 7.5, 5.0, ("BAYES_99", "HTML_MESSAGE"))
    head = b"SYMBOLS SPAMC/1.2\r\nContent-length: %d\r\n\r\n" % (len(HEAD) + 5)
    assert one.request == head + HEAD + b"plums"


def test_rspamd_is_asked_in_http(peer):
    """Only the message goes to the other filter: no recipient, no client."""
    one = peer(http(json.dumps(RSPAMD_REPLY).encode()))
    mark = asker_of(f"rspamd:127.0.0.1:{one.port}")(HEAD + b"plums")
    assert mark == FilterMark("spam", 7.5, 15.0, ("A_B",))
    assert one.request.startswith(b"POST /checkv2 HTTP/1.1\r\n")
    assert b"Rcpt" not in one.request


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("spamd", b""),
        ("spamd", b"SPAMD/1.1 76 EX_PROTOCOL\r\n\r\n"),
        ("spamd", b"SPAMD/1.1 0 EX_OK\r\nSpam: Perhaps ; 1 / 5\r\n\r\n\r\n"),
        ("spamd", b"SPAMD/1.1 0 EX_OK\r\nSpam: True ; 1.1.1 / 5\r\n\r\n\r\n"),
        ("rspamd", b""),
        ("rspamd", b"HTTP/1.1 500 no\r\n\r\n"),
        ("rspamd", http(b"[]")),
        ("rspamd", http(b"{")),
        ("rspamd", http(b'{"action": "no action", "score": "much", "required_score": 5}')),
        ("rspamd", http(b'{"error": "no model"}')),
    ],
)
def test_what_is_no_verdict_is_an_error(peer, kind, reply):
    """A broken or refusing filter gives no verdict, and no other exception."""
    one = peer(reply)
    with pytest.raises(PeerError):
        asker_of(f"{kind}:127.0.0.1:{one.port}")(HEAD + b"plums")


def test_an_unknown_action_is_no_verdict(peer):
    """An administrator's own action of rspamd says neither spam nor ham."""
    one = peer(http(json.dumps(RSPAMD_REPLY | {"action": "discard\r\nX-Spam: Yes"}).encode()))
    assert asker_of(f"rspamd:127.0.0.1:{one.port}")(HEAD + b"plums") is None


@pytest.mark.parametrize("kind", ["spamd", "rspamd"])
def test_a_filter_that_does_not_answer_is_left_after_a_while(peer, kind, monkeypatch):
    """The deadline ends the question."""
    monkeypatch.setattr(module, "ASK_S", 0.2)
    one = peer(b"", stays=True)
    with pytest.raises(PeerError):
        asker_of(f"{kind}:127.0.0.1:{one.port}")(HEAD + b"plums")


@pytest.mark.parametrize("text", ["", "hal", "spamd", "spamd:", "rspamd:unix:", "spamd:a:b"])
def test_the_name_of_no_filter_is_refused(text):
    """The error says what to write."""
    with pytest.raises(UserError):
        asker_of(text)


def test_a_bogofilter_without_words_is_an_error(tmp_path, monkeypatch):
    """Its error message is passed on; a missing program is an error, too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerError):
        asker_of("bogofilter")(HEAD)
