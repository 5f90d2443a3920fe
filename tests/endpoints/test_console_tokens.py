"""Tokens by the HTTP API: what a caller may give, and that a revoked one ends at once."""

import pytest
from support.console import Api, console, token, trained_home


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    trained_home(folder)
    with console(folder) as (daemon, address):
        two = token(folder / "home", "two", "admin", "read")
        yield folder / "home", daemon, address, Api(address, two)


def test_a_token_is_created_used_and_revoked(served):
    """Its text is in one reply alone; it ends with its revocation."""
    home, daemon, address, _ = served
    admin = Api(address, token(home, "one", "admin", "read", "teach"))
    made = admin.post("/tokens", {"name": "new", "scopes": ["read"], "user": "a@b.example"}).body
    assert (made["scopes"], made["user"]) == (["read"], "a@b.example")
    new = Api(address, made["token"])
    assert new.get("/me").body["user"] == "a@b.example"
    assert new.get("/tokens").status == 403
    listed = admin.get("/tokens").body["tokens"]
    assert {one["name"] for one in listed} >= {"one", "new"}
    assert made["token"] not in str(listed)
    assert admin.ask("DELETE", "/tokens/new").body == {"revoked": "new"}
    assert new.get("/me").status == 401
    assert admin.ask("DELETE", "/tokens/new").status == 404
    daemon.wait_for("console", operation="create_token", caller="token one", status=200)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"name": "x", "scopes": ["metrics"]}, 403),
        ({"name": "x", "scopes": ["read", "score"]}, 403),
        ({"name": "x", "scopes": ["all"]}, 403),
        ({"name": "x", "scopes": []}, 400),
        ({"name": "x", "scopes": "read"}, 400),
        ({"name": "two", "scopes": ["read"]}, 400),
        ({"name": "\n", "scopes": ["read"]}, 400),
        ({"name": "x" * 65, "scopes": ["read"]}, 400),
        ({"name": "x", "scopes": ["admin"], "user": "a@b.example"}, 400),
        ({"name": "x", "scopes": ["read"], "days": 0}, 400),
        ({"name": "x", "scopes": ["read"], "hash": "0"}, 400),
    ],
)
def test_a_caller_gives_only_what_it_has(served, given, status):
    """No token has a scope that its creator lacks, a name that is taken, or no end."""
    admin = served[3]
    names = {one["name"] for one in admin.get("/tokens").body["tokens"]}
    assert admin.post("/tokens", given).status == status
    assert {one["name"] for one in admin.get("/tokens").body["tokens"]} == names
