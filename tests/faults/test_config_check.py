"""`config check` finds what `serve` would meet, one line for each problem."""

import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing

import pytest
from support.cli import spamnb
from support.daemon import let_others_enter, serve, settings_in
from support.learner import as_user
from support.postfix import free_ports

from spamnb.daemon.config_checks import Checked, outcomes, problems
from spamnb.settings import load

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
OWN = "root" if os.geteuid() == 0 else ""


def found(folder, text, user=OWN, **environment):
    """The problems of a settings file, each as one line."""
    file = folder / "spamnb.toml"
    listener = '[listener.mx]\naddress = "127.0.0.1:0"\nupstream = "127.0.0.1:9"\n'
    user = f'[serve]\nuser = "{user}"\n'
    text = text if "[listener." in text else listener + text
    text = text.replace("[serve]\n", user) if "[serve]" in text else user + text
    file.write_text(text)
    flags = {"home": str(folder / "home")}
    settings = load(file, environment={}, flags=flags)
    return [
        f"{problem} - {problem.hint}"
        for problem in problems(Checked(settings, folder / "home", environment))
    ]


def test_settings_that_serve_takes_have_no_problem(tmp_path):
    """A home that `serve --create` would make is no problem."""
    assert found(tmp_path, "") == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[rules]\nallow = "{here}/none"\nblock = "{here}/none2"', ["none", "none2"]),
        ('[rules]\nallow = "{here}"', ["cannot be read"]),
        ('[rules]\nblock = "{here}/bad"', ["line 1"]),
        ('[delivery]\ncertificate = "{here}/none.pem"', ["the certificate"]),
        ('[delivery]\ncertificate = "{here}/bad"', ["the certificate"]),
        ('[delivery]\nusers = "{here}/none"', ["the table of users"]),
        ('[delivery]\npasswords = "{here}/none"', ["none"]),
        ('[log]\nfile = "{here}/none/log"', ["the log file"]),
        ('[log]\nfile = "{here}"', ["the log file"]),
        ('[log]\nfile = "{here}/bad/log"', ["the log file"]),
        ('[feedback]\nspool = "{here}/bad"', ["is not a folder"]),
        ('[serve]\ndelegates = ["no-such-user"]', ["no-such-user"]),
        ('[serve]\ncontrol = "{here}/none/c.sock"', ["is not a folder"]),
        ('[serve]\ncontrol = "{here}/bad"', ["is not a socket"]),
        ('[listener.a]\naddress = "unix:{here}/none/s"\nupstream = "127.0.0.1:9"', ["listener.a"]),
        ('[listener.a]\naddress = "192.0.2.1:2525"\npeers = ["unix"]\nupstream = "127.0.0.1:9"',
         ["192.0.2.1:2525"]),
        ('[listener.a]\naddress = "no.such.invalid:25"\npeers = ["unix"]\nupstream = "[::1]:9"',
         ["no.such.invalid"]),
        ('[listener.control]\naddress = "127.0.0.1:0"\nupstream = "127.0.0.1:9"',
         ["no listener can be named control"]),
    ],
)  # fmt: skip
def test_each_problem_is_reported_in_a_line(tmp_path, text, parts):
    """What `serve` cannot read, write or listen on is named; each line has the name in it."""
    (tmp_path / "bad").write_text("what is this\n")
    problems = found(tmp_path, text.replace("{here}", str(tmp_path)))
    assert len(problems) == len(parts), problems
    for line, part in zip(problems, parts, strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("127.0.0.1:{port}", "localhost:{port}"),
        ("127.0.0.1:{port}", "0.0.0.0:{port}"),
        ("lmtp:127.0.0.1:{port}", "127.0.0.1:{port}"),
        ("unix:{here}/s", "unix:{here}/./s"),
    ],
)
def test_two_listeners_on_one_address(tmp_path, first, second):
    """Two listeners on one address are reported, in any spelling of the address."""
    values = {"port": free_ports(1)[0], "here": tmp_path}
    text = "".join(
        f'[listener.{name}]\naddress = "{address.format(**values)}"\npeers = ["127.0.0.1"]\n'
        f'upstream = "127.0.0.1:9"\n'
        for name, address in (("a", first), ("b", second))
    )
    (line,) = found(tmp_path, text)
    assert "listener.a and listener.b both listen on" in line


def test_a_milter_that_could_not_release_its_quarantine_is_reported(tmp_path):
    """The settings that `serve` refuses are a problem; with an upstream they are none."""
    text = (
        '[listener.m]\nprotocol = "milter"\naddress = "127.0.0.1:0"\n{}'
        '[actions]\nreject = "quarantine"\n'
    )
    (line,) = found(tmp_path, text.format(""))
    assert "listener.m cannot put messages into quarantine" in line
    assert found(tmp_path, text.format('upstream = "127.0.0.1:9"\n')) == []


def test_ports_of_the_kernels_choice_are_not_one_address(tmp_path):
    """With port 0 each listener gets a port of its own, so two of them are no conflict."""
    one = '[listener.{}]\naddress = "127.0.0.1:0"\nupstream = "127.0.0.1:9"\n'
    assert found(tmp_path, one.format("a") + one.format("b")) == []


def test_the_delivery_agent_has_an_address_too(tmp_path):
    """A listener on the address of the delivery agent is reported."""
    text = '[listener.a]\naddress = "127.0.0.1:{0}"\n[delivery]\naddress = "localhost:{0}"\n'
    (line,) = found(tmp_path, text.format(free_ports(1)[0]))
    assert "listener.a and the delivery agent both listen on" in line


def test_mail_that_would_go_in_a_ring(tmp_path):
    """A next hop that is a listener of this daemon is reported, also under another name."""
    text = '[listener.{}]\naddress = "127.0.0.1:{}"\nupstream = "localhost:{}"\n'
    one, other = free_ports(2)
    problems = found(tmp_path, text.format("a", one, other) + text.format("b", other, 9))
    assert len(problems) == 1
    assert "the upstream of listener.a" in problems[0]
    assert "listener.b" in problems[0]


def test_an_address_that_another_program_has(tmp_path):
    """A port in use is reported."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        text = '[listener.a]\naddress = "127.0.0.1:{}"\nupstream = "127.0.0.1:9"\n'
        (line,) = found(tmp_path, text.format(taken.getsockname()[1]))
    assert "is in use" in line


def test_the_addresses_of_the_running_daemon_are_no_problem(tmp_path):
    """Settings can be checked before a reload, while the daemon listens on these addresses."""
    config = settings_in(tmp_path, address=f"127.0.0.1:{free_ports(1)[0]}")
    with serve(tmp_path, "--create", config=config).ready():
        settings = load(config, environment={}, flags={"home": str(tmp_path / "home")})
        assert problems(Checked(settings, tmp_path / "home", {})) == []


def test_an_unknown_user(tmp_path):
    """An unknown user is reported, together with every other problem."""
    problems = found(tmp_path, '[rules]\nallow = "/none"', user="no-such-user")
    assert len(problems) == 2
    assert "no-such-user" in problems[0]
    assert "/none" in problems[1]


@needs_root
def test_files_are_read_as_the_user_of_the_daemon(tmp_path):
    """What root can read and the daemon's user cannot is a problem."""
    let_others_enter(tmp_path)
    home, secret, spool = tmp_path / "home", tmp_path / "secret", tmp_path / "spool"
    home.mkdir(0o700)
    secret.write_text("")
    secret.chmod(0o600)
    spool.mkdir(0o700)
    (tmp_path / "closed").mkdir(0o700)
    text = f"""
[rules]
allow = "{secret}"
[log]
file = "{tmp_path}/closed/log"
[feedback]
spool = "{spool}"
"""
    problems = [line for line in found(tmp_path, text, user="nobody") if sys.executable not in line]
    parts = ("the home", "the log file", str(secret), "belong")
    for line, part in zip(problems, parts, strict=True):
        assert part in line
    assert os.geteuid() == 0
    os.chown(spool, 65534, 65534)
    os.chown(home, 65534, 65534)
    spool.chmod(0o777)
    problems = found(tmp_path, f'[feedback]\nspool = "{spool}"', user="nobody")
    (line,) = [line for line in problems if sys.executable not in line]
    assert "has the mode 777, not 1733" in line


@needs_root
def test_a_user_without_rights_gets_lines_and_no_traceback(tmp_path):
    """`config check` by a user without access to the home, the log's folder and the lists."""
    let_others_enter(tmp_path)
    (tmp_path / "home").mkdir(0o700)
    (tmp_path / "closed").mkdir(0o700)
    where = f"{tmp_path}/closed"
    text = f"""
[rules]
allow = "{where}/list"
[log]
file = "{where}/log"
[feedback]
spool = "{where}/spool"
[delivery]
users = "{where}/users"
certificate = "{where}/cert"
"""
    (tmp_path / "spamnb.toml").write_text("")
    (tmp_path / "spamnb.toml").chmod(0o666)
    problems = as_user(65534, lambda: "\n".join(found(tmp_path, text, user="nobody")))
    assert problems.count("\n") >= 5, problems
    assert "Error" not in problems
    for part in ("control socket", "log file", "home", "list", "users", "certificate", "spool"):
        assert part in problems


def test_a_key_with_a_passphrase_is_a_problem_and_no_question(tmp_path):
    """A key with a passphrase is reported; the check does not ask for the passphrase."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:x"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    pem = tmp_path / "pem"
    command += ["-subj", "/CN=x", "-keyout", str(pem), "-out", str(tmp_path / "cert")]
    subprocess.run(command, check=True, capture_output=True)
    text = f'[delivery]\ncertificate = "{tmp_path}/cert"\nkey = "{pem}"\n'
    (line,) = found(tmp_path, text)
    assert "the certificate" in line


AUTHSERV = '[local]\nauthserv_ids = ["mx.example.org"]\n'
HOSTS = 'hosts = ["mx.example.org"]\n'
BEFORE = '[listener.mx]\naddress = "127.0.0.1:0"\nupstream = "127.0.0.1:9"\n'
AFTER = BEFORE + 'queue = "after"\n'
MILTER = '[listener.milter]\nprotocol = "milter"\naddress = "127.0.0.1:0"\n'
BORDER = '[listener.border]\nprotocol = "milter"\naddress = "127.0.0.1:0"\nborder = true\n'


@pytest.mark.parametrize(
    ("text", "wanted", "has_remedy"),
    [
        (HOSTS + BEFORE, "mx: a forged result of a stranger is removed; a result is", False),
        (HOSTS + AFTER, "mx: a forged result of a stranger is ignored; a result is", False),
        (AFTER, "mx: a forged result of a stranger is ignored; no result is ever", True),
        (HOSTS + MILTER, "milter: a forged result of a stranger is ignored; no result", True),
        (HOSTS + BORDER, "border: a forged result of a stranger is removed", False),
        (HOSTS + BORDER + MILTER, "milter: a forged result of a stranger is ignored; a re", False),
    ],
)
def test_the_fate_of_a_forged_result_is_told(tmp_path, text, wanted, has_remedy):
    """A forged message goes through the code of each listener; a remedy follows if it is needed."""
    file = tmp_path / "spamnb.toml"
    file.write_text(AUTHSERV + text)
    settings = load(file, environment={}, flags={"home": str(tmp_path / "home")})
    told = list(outcomes(settings))[-1]
    assert told.text.startswith(f"listener.{wanted}")
    assert bool(told.remedy) == has_remedy


def test_config_check_tells_the_fate_of_a_forged_result(tmp_path):
    """Lines of the command; without names of servers there are none."""
    file = tmp_path / "spamnb.toml"
    file.write_text(AUTHSERV + HOSTS + MILTER + f'[serve]\nuser = "{OWN}"\n')
    done = spamnb(tmp_path / "home", "--config", file, "config", "check")
    assert (done.code, "border = true" in done.err) == (0, True), done.err
    file.write_text(HOSTS.join(("[local]\n", MILTER)) + f'[serve]\nuser = "{OWN}"\n')
    done = spamnb(tmp_path / "home", "--config", file, "config", "check")
    assert (done.code, done.err, len(done.lines)) == (0, "", 1)
