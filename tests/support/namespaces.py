"""Hosts in network namespaces on one bridge, and private mounts; only root can make them."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess

import pytest

_TOOLS = all(map(shutil.which, ("ip", "nft")))


def _works():
    if os.geteuid() != 0 or not _TOOLS:
        return False
    name = f"t{secrets.token_hex(4)}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


needs_namespaces = pytest.mark.skipif(not _works(), reason="no root, ip, nft or namespaces")


PRIVATE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""runs a command with its own mounts and processes, which end with the command"""
OFFLINE = ("unshare", "--net")
"""runs a command without a network"""


def _runs(*command):
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return not subprocess.run([*command, "true"], capture_output=True, check=False).returncode


needs_mounts = pytest.mark.skipif(
    not _runs(*PRIVATE), reason="no root, unshare or mount namespaces"
)
needs_offline = pytest.mark.skipif(
    not _runs(*OFFLINE), reason="no root, unshare or network namespaces"
)


class Network:
    """A namespace with a bridge and the server's address, and a namespace for each host."""

    server = "10.91.0.1"

    def __init__(self, hosts):
        self._name = f"t{secrets.token_hex(3)}"
        self._made: list[str] = []
        self._add("hub")
        self._ip("hub", "link", "add", "bridge", "type", "bridge")
        self._ip("hub", "addr", "add", f"{self.server}/24", "dev", "bridge")
        self._ip("hub", "link", "set", "bridge", "up")
        for number, host in enumerate(hosts, 2):
            self._add(host)
            there = ["type", "veth", "peer", "name", "eth0", "netns", self._made[-1]]
            self._ip("hub", "link", "add", f"to{number}", *there)
            self._ip("hub", "link", "set", f"to{number}", "master", "bridge", "up")
            self._ip(host, "addr", "add", f"10.91.0.{number}/24", "dev", "eth0")
            self._ip(host, "link", "set", "eth0", "up")

    def _add(self, host):
        name = f"{self._name}-{host}"
        subprocess.run(["ip", "netns", "add", name], check=True)
        self._made.append(name)
        self._ip(host, "link", "set", "lo", "up")

    def _ip(self, host, *words):
        self.run(host, "ip", *words)

    def inside(self, host, *command):
        """Return the command that runs a command in the namespace of a host, or of the hub."""
        return ["ip", "netns", "exec", f"{self._name}-{host}", *map(str, command)]

    def run(self, host, *command, **options):
        return subprocess.run(self.inside(host, *command), check=True, **options)

    def drop(self):
        """Drop all packets to the server, without an answer to the senders."""
        chain = f"type filter hook input priority 0; ip daddr {self.server} drop"
        rules = f"table ip cut {{ chain in {{ {chain}; }}; }}"
        self.run("hub", "nft", rules)

    def open(self):
        self.run("hub", "nft", "delete table ip cut")

    def close(self):
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)
