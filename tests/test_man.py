"""The manual pages of `scripts/man` are complete and valid."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from spamnb.cli.main import cli
from spamnb.settings.table import FAMILIES, SETTINGS

PROJECT = Path(__file__).resolve().parent.parent
EPOCH = "1700000000"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write the pages: file name -> path."""
    folder = tmp_path_factory.mktemp("man")
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run([sys.executable, PROJECT / "scripts/man", folder], check=True, env=environment)
    return {path.name: path for path in folder.glob("man*/*")}


def unescaped(path):
    """Return the text of a page without escapes."""
    return re.sub(r"\\(f[BIR]|&)", "", path.read_text("utf-8")).replace(r"\-", "-")


def commands():
    """Yield each command with the page that describes it, and the words of its options."""
    top = click.Context(cli, info_name="spamnb")
    yield "spamnb.1", cli
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        yield f"spamnb-{name}.1", command
        if isinstance(command, click.Group):
            for inner in command.list_commands(top):
                yield f"spamnb-{name}.1", command.get_command(top, inner)


def test_every_option_is_in_the_page_of_its_command(pages):
    """A page names each option, also those of subcommands, and spamnb(1) each command."""
    texts = {name: unescaped(path) for name, path in pages.items()}
    for page, command in commands():
        for option in command.params:
            for name in option.opts if isinstance(option, click.Option) else ():
                assert re.search(rf"^(.*, )?{name}\b", texts[page], re.MULTILINE), (page, name)
    for page in pages.keys() - {"spamnb.1", "spamnb.toml.5", "spamnb-headers.7"}:
        assert f"\n{page.removesuffix('.1')}(1)\n" in texts["spamnb.1"]


def test_every_setting_is_in_the_page_of_the_settings(pages):
    """spamnb.toml(5) has each setting, also those of named sections."""
    lines = unescaped(pages["spamnb.toml.5"]).splitlines()
    families = [one for family in FAMILIES.values() for one in family.settings]
    assert [one.name for one in (*SETTINGS, *families) if one.name not in lines] == []


def test_the_date_is_that_of_the_source(pages):
    """SOURCE_DATE_EPOCH gives the date, so that a build can be repeated bit for bit."""
    assert all('"2023-11-14"' in path.read_text("utf-8") for path in pages.values())


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_has_no_complaint(pages):
    """Not one message, of style neither."""
    command = ["mandoc", "-Tlint", *pages.values()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
