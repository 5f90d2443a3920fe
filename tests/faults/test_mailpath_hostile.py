"""The daemon under wrong settings and a lack of sockets, descriptors and disk space."""

import os
import signal

from support.daemon import send, serve, settings_in
from support.waiting import LIMIT_S


def reloaded(daemon, config, text):
    """Write other settings and reload; return the settings that wait for a restart."""
    before = len(daemon.logged("settings need a restart"))
    config.write_text(text)
    daemon.signal(signal.SIGHUP)
    return daemon.wait_for("settings need a restart", before + 1)["settings"]


def test_a_worker_replaced_after_a_reload_finds_its_listeners(tmp_path, sink):
    """Mail flows after a worker died and its listener was removed or lost its next hop."""
    hop = f'upstream = "{sink.address}"'
    config = settings_in(tmp_path, listener=hop, delivery="")
    text = config.read_text()
    with serve(tmp_path, "--create", config=config).ready() as daemon:
        for number, changed in enumerate((text.replace(hop, ""), "[log]\nlevel = 'debug'"), 1):
            assert reloaded(daemon, config, changed)
            (pid,) = daemon.children("worker")
            os.kill(pid, signal.SIGKILL)
            daemon.wait_for("process died", number, role="worker")
            send(daemon.port())
            assert len(sink.messages) == number


def test_one_daemon_serves_a_home(tmp_path, sink):
    """A second one is refused, also with other sockets; after a kill -9 the next one may."""
    config = settings_in(tmp_path, listener=f'upstream = "{sink.address}"', delivery="")
    other = tmp_path / "other.toml"
    control = f'[serve]\ncontrol = "{tmp_path}/other.sock"'
    other.write_text(config.read_text().replace("[serve]", control))
    with serve(tmp_path, "--create", config=config).ready() as daemon:
        second = serve(tmp_path, config=other)
        assert second.process.wait(LIMIT_S) == 2
        second.__exit__()
        assert any("another daemon serves" in line for line in second.plain)
        send(daemon.port())
        daemon.process.kill()
        daemon.process.wait()
        with serve(tmp_path, config=other).ready() as third:
            send(third.port())
    assert len(sink.messages) == 2
