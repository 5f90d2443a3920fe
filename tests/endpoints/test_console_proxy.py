"""The console behind a web server, and with a certificate of its own."""

import http.client
import signal
import socket
import ssl

import pytest
from support.browser import PASSWORD, pages
from support.cli import spamnb
from support.console import Api, console, trained_home
from support.delivery_agent import certificate
from support.page_client import Rig
from support.waiting import until

from spamnb.console.site import (
    ApiConnection,
    ApiError,
    ConsoleAccess,
    ServedHosts,
    TrustedProxies,
)
from spamnb.errors import SettingsError
from spamnb.net.address import UNIX, NetworkSet
from spamnb.operations.logins import FailedByStrangers
from spamnb.settings.schema import console_settings

PROXY, STRANGER = "127.9.0.1", "127.8.0.1"
URL = "https://console.example.org"
HOST = {"Host": "console.example.org"}
BEHIND = f'proxies = ["{PROXY}/32"]\nproxy_header = "Remote-User"\n'


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxy")
    trained_home(folder)
    with pages(folder, more=BEHIND, url=URL) as (daemon, url):
        yield Rig(folder, daemon, url)


def enter(rig, login, **more):
    """Come through the proxy as a user; the cookie."""
    headers = {**HOST, "Remote_User": login, "source": PROXY, **more}
    reply = rig.get("/login?next=/trainings", **headers)
    assert (reply.status, reply.headers["location"]) == (303, "/trainings"), reply.text
    return reply.cookie


@pytest.mark.parametrize(
    ("login", "own"), [("root", "/status"), ("carol@example.org", "/quarantine")]
)
def test_a_proxy_names_the_user(rig, login, own):
    """Without a password, also a user without a line in the password file."""
    cookie = enter(rig, login)
    assert cookie.startswith("__Host-spamnb=")
    through = {**HOST, "Remote_User": login, "source": PROXY}
    assert rig.get(own, cookie, **through).status == 200
    assert rig.get("/", cookie, **through).headers["location"] == own
    rig.daemon.wait_for("console", operation="log in by proxy", caller=login, status=200)


def test_a_strangers_header_is_ignored(rig):
    """From another address the field neither logs in nor keeps a session of the proxy."""
    cookie = enter(rig, "root")
    for source in (STRANGER, ""):
        reply = rig.get("/login", **HOST, Remote_User="root", source=source)
        assert (reply.status, reply.cookie) == (200, "")
        assert rig.get("/live", cookie, **HOST, Remote_User="root", source=source).status == 303


def test_a_session_of_the_proxy_is_one_users(rig):
    """Without the name, with another, or with two of them it is none."""
    cookie = enter(rig, "root")
    assert rig.get("/live", cookie, **HOST, source=PROXY).status == 303
    assert rig.get("/live", cookie, **HOST, source=PROXY, Remote_User="alice").status == 303
    for name in ("root, alice", "a b", "root,", "ro:ot"):
        assert rig.get("/live", cookie, **HOST, source=PROXY, Remote_User=name).status == 400
    mine = enter(rig, "alice")
    assert rig.get("/live", mine, **HOST, source=PROXY, Remote_User="root").status == 303


def test_two_fields_are_no_login(rig):
    """A field that the client sends beside that of the proxy does not win."""
    host, _, port = rig.host.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), source_address=(PROXY, 0))
    connection.putrequest("GET", "/login", skip_host=True)
    for name, value in (("Host", HOST["Host"]), ("Remote-User", "root"), ("remote-user", "alice")):
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("set-cookie")) == (400, None)
    connection.close()


def test_a_forged_client_address_changes_no_rate(rig):
    """The proxy's own entry counts; a client that comes directly is its own address."""

    def guess(source, forwarded):
        return rig.log_in("bob", "wrong", source=source, **HOST, X_Forwarded_For=forwarded).status

    statuses = [guess(PROXY, f"10.0.0.{number}, 192.0.2.7") for number in range(5)]
    assert statuses[-1] == 429
    assert guess(PROXY, f"192.0.2.7, 192.0.2.8, {PROXY}") == 401


def test_many_addresses_guess_at_one_login(rig):
    """Few of 60 guesses from 60 addresses are checked; the user is locked out nowhere."""

    def enter_as(login, password, forwarded, **more):
        more |= {"source": PROXY, "X_Forwarded_For": forwarded}
        return rig.log_in(login, password, **HOST, **more)

    cookie = enter_as("alice", PASSWORD, "203.0.113.7").cookie
    statuses = [enter_as("alice", "wrong", f"10.3.0.{n}").status for n in range(60)]
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= FailedByStrangers.FREE + 4
    assert enter_as("alice", PASSWORD, "10.3.1.1").status == 429
    through = {**HOST, "source": PROXY, "X_Forwarded_For": "10.3.1.1"}
    assert rig.get("/mail", cookie, **through).status == 200
    assert enter_as("alice", PASSWORD, "203.0.113.7").status == 303
    assert enter_as("bob", PASSWORD, "10.3.1.2").status == 303


def test_other_hosts_and_links(rig):
    """A Host of a stranger gets 421; links begin with console.url, whatever the Host."""
    for host in ("evil.example", "console.example.org.evil.example", PROXY, ""):
        assert rig.get("/login", Host=host, source=PROXY).status == 421
        more = {"X_Forwarded_Host": HOST["Host"], "source": PROXY}
        assert rig.get("/login", Host=host, **more).status == 421
    settings = rig.folder / "spamnb.toml"
    opened = spamnb(rig.home, "--config", settings, "console", "open")
    assert opened.out.startswith(f"{URL}/open/")
    reply = rig.get("/mail", **HOST, source=PROXY)
    assert reply.headers["location"] == "/login?next=%2Fmail"


def test_what_a_proxy_passes_on_is_not_from_this_machine(rig):
    """The counters need a token there, also without X-Forwarded-For."""
    assert Api(rig.host, source=STRANGER).get("/metrics").status == 200
    assert Api(rig.host, source=PROXY).get("/metrics").status == 401


def connection(address, **headers):
    return ApiConnection(address, 0, {"host": "localhost", **headers})


def test_clients_of_other_machines_need_tls_or_a_proxy():
    """Passwords cross no network in plain text; a proxy at the unix socket has hosts, too."""
    proxies = TrustedProxies(NetworkSet(("192.0.2.0/24", UNIX)))
    plain, tls = (ServedHosts(ConsoleAccess(URL, proxies, on)) for on in (False, True))
    for served, address, host, status in (
        (plain, "198.51.100.1", HOST["Host"], 403), (tls, "198.51.100.1", HOST["Host"], 0),
        (plain, "192.0.2.1", HOST["Host"], 0), (plain, "192.0.2.1", "evil.example", 421),
        (plain, UNIX, "evil.example", 421), (plain, "127.0.0.1", "localhost", 0),
        (ServedHosts(ConsoleAccess()), UNIX, "anything", 0),
    ):  # fmt: skip
        try:
            served.require(connection(address, host=host))
            found = 0
        except ApiError as error:
            found = error.status
        assert found == status, (address, host)


def test_the_client_of_a_chain_of_proxies():
    """The last address that is no proxy; what the client forges stands before it."""
    proxies = TrustedProxies(NetworkSet(("192.0.2.0/24",)))

    def source(address, text):
        return proxies.source_of(connection(address, **{"x-forwarded-for": text}))

    direct = proxies.source_of(connection("203.0.113.9"))
    assert source("192.0.2.1", "8.8.8.8, 203.0.113.9, 192.0.2.2") == direct
    assert source("203.0.113.9", "8.8.8.8") == direct
    assert source("192.0.2.1", "") == proxies.source_of(connection("192.0.2.1"))
    assert len(source("192.0.2.1", "x" * 10_000)) <= 64


@pytest.mark.parametrize(
    "given",
    [
        {"address": "0.0.0.0:8025"}, {"address": "192.0.2.1:443", "url": URL},
        {"address": "192.0.2.1:443", "certificate": "/c.pem"},
        {"proxy_header": "Remote-User"}, {"proxy_header": "Remote User", "proxies": ("unix",)},
        {"proxy_header": "", "url": "console.example.org"},
    ],
)  # fmt: skip
def test_open_settings_are_an_error(given):
    """An address beyond this machine needs TLS or proxies, and a URL; a field needs proxies."""
    with pytest.raises(SettingsError):
        console_settings(**given)
    safe = {"address": "192.0.2.1:443", "url": URL}
    assert console_settings(**safe, certificate="/c.pem")
    assert console_settings(**safe, proxies=("192.0.2.2/32",))


def test_a_unix_socket_for_a_proxy_is_for_its_group(tmp_path):
    """Not every local user may name users; the names of the kernel do not count there."""
    trained_home(tmp_path)
    path = f"unix:{tmp_path}/console.sock"
    for more, mode, status in (("", 0o666, 200), ('proxies = ["unix"]\n', 0o660, 401)):
        with console(tmp_path, path, more=more) as (_, address):
            assert (tmp_path / "console.sock").stat().st_mode & 0o777 == mode
            assert Api(address).get("/status").status == status


# --- TLS -----------------------------------------------------------------------------------------


def shown_certificate(host, port, cafile):
    context = ssl.create_default_context(cafile=cafile)
    raw = socket.create_connection((host, port))
    with raw, context.wrap_socket(raw, server_hostname="localhost") as wire:
        return wire.getpeercert(binary_form=True)


def test_the_daemon_speaks_tls(tmp_path):
    """Pages and API; a reload takes a new certificate, and keeps the old one if it is damaged."""
    trained_home(tmp_path)
    cert, key = certificate(tmp_path)
    more = f'certificate = "{cert}"\nkey = "{key}"\n'
    with pages(tmp_path, more=more) as (daemon, url):
        rig = Rig(tmp_path, daemon, url, tls=cert)
        host, _, port = rig.host.rpartition(":")
        old = shown_certificate(host, int(port), cert)
        reply = rig.log_in("root")
        assert reply.cookie.startswith("__Host-spamnb=")
        assert "; Secure" in reply.headers["set-cookie"]
        assert rig.get("/live", reply.cookie).status == 200
        assert rig.log_in("root", Sec_Fetch_Site=None, Origin=f"http://{rig.host}").status == 403
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", "/")
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            connection.getresponse()
        connection.close()
        certificate(tmp_path)
        daemon.signal(signal.SIGHUP)
        until(lambda: renewed(host, int(port), cert) not in (None, old), "the new certificate")
        new = shown_certificate(host, int(port), cert)
        (tmp_path / "key.pem").write_text("no key")
        daemon.signal(signal.SIGHUP)
        assert "certificate" in daemon.wait_for("settings not reloaded")["error"]
        assert shown_certificate(host, int(port), cert) == new
        settings = tmp_path / "spamnb.toml"
        checked = spamnb(tmp_path / "home", "--config", settings, "config", "check")
        assert checked.code == 2
        assert "the certificate" in checked.err


def renewed(host, port, cafile):
    try:
        return shown_certificate(host, port, cafile)
    except ssl.SSLError:
        return None


def test_the_host_of_the_url_is_served(tmp_path):
    """Behind a web server the Host is that of console.url; a reload changes it."""
    trained_home(tmp_path)
    with console(tmp_path, url="https://mail.example.org/") as (daemon, address):
        assert Api(address, Host="mail.example.org").get("/health").status == 200
        config = tmp_path / "spamnb.toml"
        config.write_text(config.read_text().replace("mail.example.org", "new.example.org"))
        daemon.signal(signal.SIGHUP)
        until(lambda: Api(address, Host="new.example.org").get("/health").status == 200, "reload")
        assert Api(address, Host="mail.example.org").get("/health").status == 421
