"""The table of the API: documentation, rights and limits that need no server."""

import json
import re
from pathlib import Path

import pytest

from spamnb.console.site import BURST, ApiConnection, ApiError, Callers, TrustedProxies
from spamnb.console.table import OPERATIONS, document, in_path
from spamnb.daemon import start
from spamnb.errors import RefError, SettingsError, StoreDamagedError, UserError
from spamnb.net.address import NetworkSet
from spamnb.operations.logins import SCOPES, TokenFile, new_token
from spamnb.settings import Settings, load
from spamnb.settings.schema import ConsoleSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text()


def test_the_page_lists_every_operation():
    """docs/console.md has each method and path, and each scope."""
    for operation in OPERATIONS:
        assert f"`{operation.method} {operation.path}`" in PAGE, operation.name
    for scope in SCOPES:
        assert f"`{scope}`" in PAGE


def test_every_row_is_complete():
    """Names and paths are distinct, scopes exist, parameters of the path are declared."""
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    for one in OPERATIONS:
        assert one.scope in ("", *SCOPES)
        assert one.summary.endswith("."), one.name
        names = [parameter.name for parameter in one.parameters]
        assert set(in_path(one)) <= set(names)
        assert len(set(names)) == len(names)


def test_every_reference_of_the_document_leads_somewhere():
    """The document is JSON, and each $ref names a part of it."""
    whole = document("1")
    text = json.dumps(whole)
    for ref in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        part = whole
        for name in ref.split("/"):
            part = part[name]
    for path, methods in whole["paths"].items():
        for described in methods.values():
            placed = [one["name"] for one in described["parameters"] if one["in"] == "path"]
            assert placed == re.findall(r"\{(\w+)\}", path)


def test_without_its_packages_the_console_is_one_error(monkeypatch):
    """`serve` and `config check` name the packages and the extra; without an address nothing."""
    monkeypatch.setattr(start, "find_spec", lambda _: None)
    wanted = Settings(console=ConsoleSettings("127.0.0.1:8025"))
    with pytest.raises(UserError, match="starlette and uvicorn") as caught:
        start.checked(wanted)
    assert "spamnb[console]" in caught.value.hint
    assert start.checked(Settings()) == Settings()


@pytest.mark.parametrize(
    "text", ['address = "192.0.2.1:80"', 'address = "0.0.0.0:80"', 'url = "example.org"']
)
def test_the_address_is_of_this_machine(tmp_path, text):
    """The API has no TLS, so other machines cannot reach it."""
    (tmp_path / "spamnb.toml").write_text(f"[console]\n{text}\n")
    with pytest.raises(SettingsError, match="console"):
        load(tmp_path / "spamnb.toml", environment={})


def test_the_file_of_tokens(tmp_path):
    """It has hashes only; a token ends by its time or is revoked; damage is an error."""
    tokens = TokenFile(tmp_path)
    text = tokens.create(new_token("one", ("read", "read"), "", 1, now_us=1_000_000))
    tokens.create(new_token("two", ("score",), "alice", 1, now_us=1_000_000))
    day = 86_400_000_000
    assert tokens.find(text, 2_000_000).scopes == ("read",)
    assert tokens.find(text, 1_000_000 + day) is None
    file = tmp_path / "console" / "tokens.json"
    assert text not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="there is a token"):
        tokens.create(new_token("one", ("read",), "", 1, now_us=1))
    tokens.revoke("one")
    assert tokens.find(text, 2_000_000) is None
    with pytest.raises(RefError):
        tokens.revoke("one")
    file.write_text("[1]")
    with pytest.raises(StoreDamagedError):
        tokens.find(text, 1)


def test_rates_refill_and_are_bounded(tmp_path):
    """A source has a burst, then 20 a second; a million sources do not fill the memory."""
    now = [0.0]
    callers = Callers(TokenFile(tmp_path), lambda: now[0])

    def ask(address):
        return callers.identify(ApiConnection(address, -1, {}))

    for _ in range(int(BURST)):
        ask("192.0.2.1")
    with pytest.raises(ApiError) as caught:
        ask("192.0.2.1")
    assert caught.value.status == 429
    ask("192.0.2.2")
    now[0] += 0.05
    ask("192.0.2.1")
    for number in range(10_000):
        ask(f"10.0.{number // 250}.{number % 250}")
    assert len(callers._buckets) <= 4096
    # One customer of IPv6 has 2^64 addresses.
    for number in range(int(BURST)):
        ask(f"2001:db8::{number:x}")
    with pytest.raises(ApiError):
        ask("2001:db8::ffff")


def test_a_flood_is_known_before_a_request_is_read(tmp_path):
    """By the address alone, which takes nothing; a web server's client by the head."""
    callers = Callers(TokenFile(tmp_path), lambda: 0.0)
    callers.proxies = TrustedProxies(NetworkSet(("192.0.2.9",)))
    plain = b"GET / HTTP/1.1\r\n\r\n"
    passed_on = b"GET / HTTP/1.1\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n"
    for address in ("198.51.100.1", "192.0.2.9", "127.0.0.1"):
        for _ in range(int(BURST)):
            assert not callers.is_spent(address, plain)
            callers.identify(ApiConnection(address, -1, {}))
        assert callers.is_spent(address, plain)
        assert callers.is_spent(address, passed_on) == (address == "198.51.100.1")
    assert not callers.is_spent("203.0.113.1", plain)
    assert not callers.is_spent("unix", plain)
