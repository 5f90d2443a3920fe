"""The image of scripts/package/image: built twice alike; it starts in namespaces as process 1."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.waiting import LIMIT_S, until

PROJECT = Path(__file__).resolve().parent.parent
EPOCH = "1700000000"
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
ENGINE = """cd "$0" && mount --bind . . && cd "$0" && mount --bind var/lib/spamnb var/lib/spamnb &&
mount -t proc proc proc && mount --rbind /dev dev && mount -t tmpfs tmpfs tmp &&
mount -o remount,ro,bind "$0" && exec "$@"
"""
"""what an engine does before it starts the program, with the root as $0"""
SERVE = ("serve", "--create", "--listen", "unix:/var/lib/spamnb/smtp.sock")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("debootstrap", "dpkg-deb", "unshare"))),
        reason="needs root, debootstrap, dpkg-deb and unshare",
    ),
]


def made(*command):
    """Run a script that prints the path of what it makes."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


def blob(layout, descriptor):
    return layout / "blobs" / descriptor["digest"].replace(":", "/")


def unpacked(image, folder):
    """Unpack an image as an engine does; return its root and its configuration."""
    layout, root = folder / "layout", folder / "root"
    layout.mkdir()
    root.mkdir()
    subprocess.run(["tar", "-xf", image, "-C", layout], check=True)
    [one] = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(layout, one).read_text())
    [layer] = manifest["layers"]
    subprocess.run(["tar", "-xzf", blob(layout, layer), "-C", root], check=True)
    return root, json.loads(blob(layout, manifest["config"]).read_text())["config"]


def serves_as_process_1(root, config):
    """Start it as the image says, with a read-only root; it answers, and ends at SIGTERM."""
    inside = ["chroot", f"--userspec={config['User']}", root, "env", "-i", *config["Env"]]
    inside += ["SPAMNB_DELIVERY_ADDRESS=unix:/var/lib/spamnb/lmtp.sock", *config["Entrypoint"]]
    command = [*NAMESPACES, "sh", "-c", ENGINE, root, *inside, *SERVE]
    with_devices = 'mount --rbind /dev "$0/dev" && exec "$@"'
    asking = ["unshare", "--mount", "sh", "-c", with_devices, root, *inside]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, stderr=subprocess.PIPE) as outer:
        try:
            until(
                lambda: (
                    outer.poll() is not None
                    or subprocess.run([*asking, "status"], check=False, **quiet).returncode == 0
                ),
                "the status",
            )
            assert outer.poll() is None, outer.stderr.read()
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            assert outer.wait(LIMIT_S) == 0, outer.stderr.read()
        finally:
            outer.kill()


def test_an_image_is_built_twice_alike_and_serves(tmp_path):
    """Two builds from one package are equal, bit for bit; user and command are those it names."""
    package = made(PROJECT / "scripts/package/deb", tmp_path / "deb", "-Zgzip", "-z1")
    images = [
        made(PROJECT / "scripts/package/image", package, tmp_path / name)
        for name in ("first", "second")
    ]
    first, second = (image.read_bytes() for image in images)
    assert first == second
    root, config = unpacked(images[0], tmp_path)
    assert config["Cmd"] == ["serve", "--create"]
    assert (root / "var/lib/spamnb").stat().st_uid == int(config["User"].partition(":")[0])
    serves_as_process_1(root, config)
