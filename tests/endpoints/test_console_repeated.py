"""Changes with an Idempotency-Key: done once, however often they are sent."""

import asyncio

import pytest
from starlette.responses import Response
from support.console import Api, console, token, trained_home

from spamnb.console.site import KNOWN_S, ApiError, RepeatedRequests


class Repeated:
    """Requests that count how often they run."""

    def __init__(self):
        self.now, self.runs = 0.0, 0
        self.requests = RepeatedRequests(lambda: self.now)

    async def run(self):
        self.runs += 1
        return Response(f"run {self.runs}".encode(), 202, media_type="text/plain")

    def send(self, caller="a", key="k", content=b"x", run=None):
        return asyncio.run(self.requests.reply_of(caller, key, content, run or self.run))


def status_of(repeated, **more):
    with pytest.raises(ApiError) as caught:
        repeated.send(**more)
    return caught.value.status


def test_a_repetition_gets_the_first_reply():
    """For a day; the same key of another caller is another one."""
    repeated = Repeated()
    first, again = repeated.send(), repeated.send()
    assert (first.body, again.body, again.status_code) == (b"run 1", b"run 1", 202)
    assert again.headers["idempotency-replayed"] == "true"
    assert repeated.send(caller="b").body == b"run 2"
    repeated.now = KNOWN_S + 1
    assert repeated.send().body == b"run 3"


def test_a_key_belongs_to_one_request():
    """Another content, or a key that is none, is refused and not run."""
    repeated = Repeated()
    repeated.send()
    assert status_of(repeated, content=b"y") == 409
    for key in ("", "x" * 256, "\n", "ü"):
        assert status_of(repeated, key=key) == 400, key
    assert repeated.runs == 1


def test_a_change_that_failed_is_tried_again():
    """Only a reply is kept; while a request runs, its repetition is refused."""
    repeated = Repeated()

    async def failing():
        raise ApiError(503, "later")

    async def twice():
        with pytest.raises(ApiError) as caught:
            await repeated.requests.reply_of("a", "k", b"x", repeated.run)
        assert caught.value.status == 409
        return await repeated.run()

    assert status_of(repeated, run=failing) == 503
    assert repeated.send(run=twice).body == b"run 1"
    assert repeated.send().body == b"run 1"


def test_the_keys_of_a_flood_are_bounded(monkeypatch):
    """The oldest is forgotten first."""
    monkeypatch.setattr("spamnb.console.site._MOST_KNOWN", 3)
    repeated = Repeated()
    for number in range(10):
        repeated.send(key=f"k{number}")
    assert len(repeated.requests._known) == 3
    assert repeated.send(key="k9").body == b"run 10"
    assert repeated.send(key="k0").body == b"run 11"


def test_a_daemon_does_a_repeated_change_once(tmp_path):
    """A token is created once, and its text is in the reply of the repetition, too."""
    trained_home(tmp_path)
    with console(tmp_path) as (_, address):
        admin = Api(address, token(tmp_path / "home", "one", "admin"), Idempotency_Key="1")
        made = admin.post("/tokens", {"name": "new", "scopes": ["admin"]})
        again = admin.post("/tokens", {"name": "new", "scopes": ["admin"]})
        assert made.status == 200
        assert again.body == made.body
        assert again.headers["cache-control"] == "no-store"
        assert admin.post("/tokens", {"name": "other", "scopes": ["admin"]}).status == 409
        assert {one["name"] for one in admin.get("/tokens").body["tokens"]} == {"one", "new"}
        other = Api(address, made.body["token"], Idempotency_Key="1")
        assert other.post("/tokens", {"name": "third", "scopes": ["admin"]}).status == 200
