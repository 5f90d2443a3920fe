"""Another filter is asked about a share of the mail, never in the way of mail."""

import json

import pytest

from spamnb.errors import PeerError
from spamnb.mail.other_filters import FilterMark
from spamnb.scan import shadow as module
from spamnb.scan.scanner import ScanPolicy
from spamnb.scan.shadow import MOST_A_SECOND, MOST_AT_ONCE, Shadow, ShadowDeps, read_asked

MARK = FilterMark("spam", 9.5, 5.0, ("A", "B"))


class Threads:
    """Runs work when told to, as a thread would later."""

    def __init__(self):
        self.waiting = []

    def run(self, work, then):
        self.waiting.append((work, then))

    def go_on(self):
        while self.waiting:
            work, then = self.waiting.pop(0)
            then(work())


class Rig:
    """A shadow with what it works with."""

    def __init__(self, home, share=1.0, ask=lambda _: MARK):
        self.threads, self.records, self.time = Threads(), [], 1000.0
        self.asked = []
        deps = ShadowDeps(self._ask, self.threads.run, self.records.append, lambda: self.time)
        self.home, self._answer = home, ask
        self.shadow = Shadow(home, share, deps)

    def _ask(self, raw):
        self.asked.append(raw)
        return self._answer(raw)

    def offer(self, name):
        self.shadow.offer(b"raw", {"signature": f"s{name}", "scan_ms": 1.5})


def test_answers_are_kept_by_signature(tmp_path):
    """The report finds the other verdict and the times of both."""
    rig = Rig(tmp_path)
    rig.offer("1")
    assert rig.asked == []
    rig.threads.go_on()
    found = read_asked(tmp_path)
    assert found["s1"].mark == MARK
    assert found["s1"].own_ms == 1.5
    assert found["s1"].other_ms >= 0
    rig.shadow.offer(b"raw", {"verdict": "unscanned"})
    rig.threads.go_on()
    assert len(rig.asked) == 1


def test_only_a_share_is_asked_about(tmp_path):
    """About the given share of signatures, and always the same ones."""
    chosen = []
    for _ in range(2):
        rig = Rig(tmp_path, share=0.2)
        for number in range(1000):
            rig.time += 1
            rig.offer(number)
            rig.threads.go_on()
        chosen.append(len(rig.asked))
    assert chosen[0] == chosen[1]
    assert 150 < chosen[0] < 250
    assert Rig(tmp_path, share=0.0).offer("1") is None


def test_what_comes_too_fast_is_left_out(tmp_path):
    """At most two at once, and ten a second; nothing waits."""
    rig = Rig(tmp_path)
    for number in range(5):
        rig.offer(number)
    assert len(rig.threads.waiting) == MOST_AT_ONCE
    rig.threads.go_on()
    for number in range(20):
        rig.offer(number)
        rig.threads.go_on()
    assert len(rig.asked) == MOST_A_SECOND
    rig.time += 1
    rig.offer("later")
    assert len(rig.threads.waiting) == 1


def test_a_filter_that_is_away_is_asked_again_after_a_pause(tmp_path):
    """A failure is logged once, and costs no further message until the pause is over."""

    def fail(_):
        raise PeerError("no scanner at 127.0.0.1:1")

    rig = Rig(tmp_path, ask=fail)
    for number in range(5):
        rig.offer(number)
        rig.threads.go_on()
    assert len(rig.asked) == 1
    assert len(rig.records) == 1
    rig.time += 61
    rig.offer("again")
    rig.threads.go_on()
    assert len(rig.asked) == 2


def test_the_files_are_bounded(tmp_path, monkeypatch):
    """A full day takes no more, and a new day removes the oldest of too many."""
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    folder = tmp_path / "trial"
    folder.mkdir()
    for day in range(10, 50):
        (folder / f"asked-201001{day}.jsonl").touch()
    rig = Rig(tmp_path)
    for number in range(40):
        rig.time += 1
        rig.offer(number)
        rig.threads.go_on()
    files = sorted(folder.iterdir())
    assert len(files) == module.KEPT_DAYS
    assert files[0].name == "asked-20100121.jsonl"
    assert files[-1].stat().st_size < 500
    assert files[-1].stat().st_mode & 0o777 == 0o600
    assert "s0" in read_asked(tmp_path)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "3", '{"signature": 1}', "\0", '{"signature":"s","other":"x","own_ms":1}',
     json.dumps({"signature": "s", "other": "spam 1", "own_ms": "?", "other_ms": 1})],
)  # fmt: skip
def test_a_damaged_line_is_skipped(tmp_path, line):
    """The other lines are read."""
    rig = Rig(tmp_path)
    rig.offer("1")
    rig.threads.go_on()
    (path,) = (tmp_path / "trial").iterdir()
    with path.open("a") as file:
        file.write(line + "\n")
    assert list(read_asked(tmp_path)) == ["s1"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_scanner_offers_what_it_has_scanned(home, scan_rig, surest, fails):
    """After the result, and whatever the other filter does, the result is the same."""
    seen = []

    def run(work, then):
        seen.append("asked")
        then(work())

    def ask(_):
        if fails:
            raise ValueError("broken")
        return MARK

    one = Shadow(home, 1.0, ShadowDeps(ask, run, lambda _: None))
    rig = scan_rig(ScanPolicy(), shadow=one)
    outcome = rig.scan(surest["spam"])
    assert outcome.action == "relay"
    assert seen == ["asked"]
    assert (outcome.facts["signature"] in read_asked(home)) != fails
