"""Five tasks of an administrator and a user, with the number of taps that each takes.

A task begins on the page that comes after the login. It is done by mouse, on a phone without
script, and by keyboard alone.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.browser import pages, window
from support.console import KEEP_ALL
from support.daemon import send
from support.sink import Sink

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from console_home import CARELESS, DAY_US, DOMAIN, write_home

from spamnb.engine.filter import Filter
from spamnb.engine.values import Learn, Source
from spamnb.telemetry import now_us

PERSONS = """
[local]
domains = ["example.org"]
[persons]
enabled = true
"""
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
ALICE = "alice@example.org"


WAYS = {
    "desk": {"size": DESK},
    "phone": {"size": PHONE, "script": False},
    "keyboard": {"size": DESK},
}
MOST_TABS = 500


@pytest.fixture(scope="module", params=WAYS)
def site(request, tmp_path_factory):
    """A home with a month of verdicts, trainings, and fifty messages in quarantine."""
    folder = tmp_path_factory.mktemp("tasks")
    write_home(folder / "home", 300)
    taught_yesterday(folder / "home")
    sink = Sink()
    listener = f'upstream = "{sink.address}"'
    more = KEEP_ALL + PERSONS
    with pages(folder, delivery="", listener=listener, more=more) as (daemon, url):
        for number in range(50):
            send(daemon.port(), subject=f"number {number}", to=[ALICE], text="hello")
        yield SimpleNamespace(url=url, way=request.param)
    sink.close()


def taught_yesterday(home):
    """Three wrong labels of one user, the newest trainings of the home."""
    source = Source(f"{CARELESS}@{DOMAIN}", "folder", immediate=True)
    with Filter.open(home, history=False) as model:
        raw = [f"Subject: minutes {n}\n\nof the meeting {n}".encode() for n in range(3)]
        wrong = [Learn(model.example(one), 1, source, now_us() - DAY_US) for one in raw]
        assert all(one.error is None and one.changed for one in model.teach(wrong))


class Hand:
    """Taps, or presses Tab and Enter, and counts this; opens the menu of a phone first."""

    def __init__(self, page, way):
        self.page, self.way = page, way
        self.taps = 0

    def tap(self, role, name, **found):
        wanted = self.page.get_by_role(role, name=name, **found).first
        wanted.wait_for()
        self.taps += 1
        if self.way != "keyboard":
            wanted.click()
            return
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Tab")
            if wanted.evaluate("one => one === document.activeElement"):
                self.page.keyboard.press("Enter")
                return
        pytest.fail(f"no Tab leads to {name}")

    def menu(self, name):
        if self.page.get_by_role("link", name="Menu", exact=True).is_visible():
            self.tap("link", "Menu", exact=True)
        self.tap("link", name, exact=True)


def release_one_of_fifty(hand):
    hand.tap("button", "Not junk: “number 30”", exact=True)
    hand.page.get_by_text(f"Released to {ALICE}.").wait_for()


def find_out_why_a_message_is_missing(hand):
    hand.tap("link", "number 20", exact=True)
    hand.page.get_by_role("heading", name="In quarantine").wait_for()
    hand.page.get_by_role("heading", name="What the filter says").wait_for()


def take_back_what_a_user_taught_yesterday(hand):
    hand.menu("Training")
    hand.tap("link", f"{CARELESS}@{DOMAIN}", exact=True)
    hand.tap("link", "Undo all of these…")
    hand.tap("button", "Undo these trainings")
    hand.page.get_by_text("are undone").wait_for()


def make_a_sender_wanted(hand):
    hand.tap("link", "number 10", exact=True)
    hand.tap("button", "Always wanted")
    hand.page.get_by_text("is always wanted").first.wait_for()


def see_whether_the_filter_got_better(hand):
    hand.page.get_by_text("In the last 7 days people reported").first.wait_for()


TASKS = {
    release_one_of_fifty: ("alice", 1, 1),
    find_out_why_a_message_is_missing: ("alice", 1, 1),
    take_back_what_a_user_taught_yesterday: ("root", 4, 5),
    make_a_sender_wanted: ("alice", 2, 2),
    see_whether_the_filter_got_better: ("root", 0, 0),
}
"""the login, and the taps at a desk and on a phone"""


@pytest.mark.parametrize("task", TASKS, ids=lambda one: one.__name__)
def test_a_task_takes_few_taps(site, browser, task):
    login, desk, phone = TASKS[task]
    with window(browser, site.url, **WAYS[site.way]) as opened:
        hand = Hand(opened.log_in(login), site.way)
        task(hand)
        assert hand.taps == (phone if site.way == "phone" else desk)
