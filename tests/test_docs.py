"""The commands and code of README.md and of its pages work; links and names exist."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import LIMIT_S, until

import spamnb
import spamnb.bayes
from spamnb.imap.sync import ImapMailbox
from spamnb.maintenance.doctor import CHECKS

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()
RUN = ("README.md", "docs/commands.md", "docs/evaluate.md", "docs/python.md")
"""the pages whose commands and code are run, in this order"""
PAGES = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]


def blocks(language):
    """Return the blocks of the pages in one language."""
    text = "\n".join((PROJECT / page).read_text() for page in RUN)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands_of(language):
    """Return the commands in these blocks, from top to bottom."""
    text = "\n".join(blocks(language))
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def environment(place):
    """Return the environment of a user's shell: spamnb on the path, a home."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    root = {"SPAMNB_SERVE_USER": "root"} if os.geteuid() == 0 else {}
    own = {"PATH": path, "SPAMNB_HOME": str(place / "home"), "SPAMNB_MODEL_PRIOR": "true"}
    return os.environ | own | root


def works(command, place, cwd=None):
    """Run one command in a shell; it must succeed."""
    ran = subprocess.run(
        command,
        shell=True,
        cwd=cwd or place,
        env=environment(place),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    assert "Traceback" not in ran.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with ham/, spam/ and new/, and few/ with 60 messages of each label."""
    place = tmp_path_factory.mktemp("readme")
    for label in ("ham", "spam"):
        (place / label).symlink_to(PROJECT / "corpora" / "sample" / label)
        (place / "few" / label).mkdir(parents=True)
        for file in sorted((PROJECT / "corpora" / "sample" / label).iterdir())[:60]:
            (place / "few" / label / file.name).symlink_to(file)
    maker = [sys.executable, str(PROJECT / "scripts" / "make-sample"), str(place / "new")]
    subprocess.run([*maker, "--ham", "3", "--spam", "3", "--seed", "2"], check=True)
    return place


def test_every_command_of_the_readme_works(place):
    """The shell blocks of these pages run from top to bottom."""
    commands = commands_of("sh")
    assert len(commands) > 10
    for command in commands:
        is_measuring = command.startswith(("spamnb evaluate", "spamnb tune"))
        works(command, place, cwd=place / "few" if is_measuring else place)


def test_every_command_for_the_daemon_works(place):
    """The commands that need a daemon run beside one."""
    commands = commands_of("sh daemon")
    assert len(commands) > 5
    serve = [sys.executable, "-m", "spamnb", "serve", "--create"]
    serve += ["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:9"]
    with (place / "log").open("w") as log:
        daemon = subprocess.Popen(serve, env=environment(place), cwd=PROJECT, stderr=log)
    try:
        log = place / "log"
        until(lambda: " ready " in log.read_text() or daemon.poll() is not None, "the daemon")
        assert daemon.poll() is None, log.read_text()
        for command in commands:
            works(command, place)
    finally:
        daemon.terminate()
        assert daemon.wait(LIMIT_S) == 0


def test_the_python_of_the_readme_works(place, monkeypatch, capsys):
    """The Python blocks run with one message as `raw`."""
    monkeypatch.chdir(place)
    raw = next((place / "new" / "spam").iterdir()).read_bytes()
    for block in blocks("python"):
        exec(compile(block, "a page", "exec"), {"raw": raw})
    assert capsys.readouterr().out


def test_every_public_name_is_in_the_readme():
    """README.md names the whole public interface."""
    assert [name for name in spamnb.__all__ if f"`{name}`" not in README] == ["__version__"]


@pytest.mark.parametrize("module", [spamnb, spamnb.bayes], ids=lambda module: module.__name__)
def test_the_public_interface_has_docstrings(module):
    """Every public class and function has a docstring, and so have the methods that it defines."""
    missing = []
    for name in module.__all__:
        public = getattr(module, name)
        methods = vars(public).items() if isinstance(public, type) else ()
        members = [(f"{name}.{key}", value) for key, value in methods if not key.startswith("_")]
        documented = [(key, value) for key, value in members if callable(value)]
        documented += [(name, public)] if callable(public) else []
        missing += [key for key, value in documented if not inspect.getdoc(value)]
    assert missing == []


def test_every_command_is_in_the_readme():
    """README.md, docs/commands.md or CHANGELOG.md names every command."""
    from spamnb.cli.main import COMMANDS

    pages = ("README.md", "docs/commands.md", "CHANGELOG.md")
    listed = "".join((PROJECT / page).read_text() for page in pages)
    assert [name for name in COMMANDS if name not in listed] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_somewhere(page):
    """Relative links to files and headings exist."""
    text = page.read_text()
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_section_that_the_doctor_names_exists():
    """`spamnb doctor` refers only to headings that the guides have."""
    texts = [check.todo for check in CHECKS] + [ImapMailbox.advice]
    named = [
        (page, section)
        for text in texts
        for page, sections in re.findall(r"docs/(\w+\.md)((?:, [A-Z][a-zA-Z ]+)+)", text)
        for section in sections.removeprefix(", ").split(", ")
    ]
    assert len(named) > 3
    for page, section in named:
        assert f"\n## {section}\n" in (PROJECT / "docs" / page).read_text(), (page, section)


def test_every_decision_is_listed():
    """docs/decisions/README.md links to every decision record."""
    folder = PROJECT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    records = sorted(folder.glob("[0-9]*.md"))
    assert records
    assert [path.name for path in records if f"({path.name})" not in listed] == []


def test_every_decision_that_the_code_names_exists():
    """A number after `docs/decisions/` or `decision` in the source has a record."""
    sources = [*(PROJECT / "spamnb").rglob("*.py"), *(PROJECT / "scripts" / "bench").iterdir()]
    text = "\n".join(path.read_text() for path in sources if path.is_file())
    numbers = set(re.findall(r"\bdecisions?[/\s](\d{4})", text))
    assert numbers
    for number in numbers:
        assert list((PROJECT / "docs" / "decisions").glob(f"{number}-*.md")), number
