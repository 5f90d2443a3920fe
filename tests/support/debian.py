"""Bare releases of Debian, made by debootstrap, whose processes run in namespaces of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""those that this machine trusts"""
TRUSTED = Path("/usr/local/share/trusted.crt")
"""their place in a bare machine, whose package ca-certificates has others"""
TAKEN = """
import socket, sys, time
taken = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[1:]]
time.sleep(3600)
"""

needs_debootstrap = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "unshare"))),
    reason="needs root, debootstrap and unshare",
)


def this_release():
    """The name of the release of this machine."""
    about = Path("/etc/os-release").read_text()
    return re.search(r"^VERSION_CODENAME=(\w+)", about, re.MULTILINE)[1]


def bare(root, release):
    """Make a bare machine of a release, which gets packages from where this machine does."""
    asked = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    source = re.search(rf"^{this_release()} (\S+)$", listed, re.MULTILINE)
    if source is None:
        pytest.skip("apt has no source of this release")
    made = ["debootstrap", "--variant=minbase", release, root, source[1]]
    result = subprocess.run(made, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"debootstrap failed: {result.stdout[-500:]}")
    with_network(root, "apt-get update -qq")
    # As the installer writes it.
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 mx.example.org mx\n")
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / TRUSTED.relative_to("/"))
    return root


def copy_of(root, place):
    """Copy a machine, with its device files."""
    subprocess.run(["cp", "-a", root, place], check=True)
    return place


def project_in(folder):
    """Copy the files of this project that a clone has."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (PROJECT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name, follow_symlinks=False)


def script(text):
    """Remove the indent of each line, which files within the text must not have."""
    return "\n".join(line.removeprefix("        ") for line in text.splitlines())


def with_network(machine, text):
    """Run a script in the machine, which may fetch packages; a test is skipped if that fails."""
    result = _run(machine, text, NAMESPACES)
    if result.returncode:
        pytest.skip(f"packages cannot be fetched: {result.stderr[-500:]}")


def inside(machine, text, taken=()):
    """Run a script in the machine, without a network and with these ports of loopback in use.

    Its processes end with it.
    """
    ports = " ".join(map(str, taken))
    alone = f'ip link set lo up; "$0" -c "$1" {ports} >/dev/null 2>&1 &'
    result = _run(machine, text, (*NAMESPACES, "--net"), alone)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    for name in ("dev", "proc"):
        assert not os.path.ismount(machine / name)


def _run(machine, text, namespaces, before=""):
    for name in ("proc", "dev", "sys"):
        (machine / name).mkdir(exist_ok=True)
    (machine / "root" / "script").write_text(script(text))
    enter = f"""
        set -e
        mount -t proc proc {machine}/proc
        mount --rbind /dev {machine}/dev
        {before}
        hostname mx.example.org
        exec chroot {machine} sh -eux /root/script
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}
    environment |= {name: os.environ[name] for name in os.environ if name.endswith("_proxy")}
    environment |= {"DEBIAN_FRONTEND": "noninteractive", "PIP_CERT": str(TRUSTED)}
    return subprocess.run(
        [*namespaces, "sh", "-c", enter, sys.executable, TAKEN],
        stdin=subprocess.DEVNULL,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
