"""Mail of a technical list, and newsletters: a kind that ham has not met."""

import random

WORDS = [f"{a}{b}{c}" for a in ("pat", "ker", "lin", "mod") for b in "aeiou" for c in ("nel", "x")]
SALE = ["offer", "price", "order", "buy", "gift", "card", "shop", "deal", "click", "now"]


def listed(number):
    """A message of a technical list."""
    chosen = random.Random(number)
    return (
        f"Received: from lists.test by mx.test; Mon, 1 Jun 2026 10:00:00 +0000\n"
        f"From: Dev {number % 9} <dev{number % 9}@lists.test>\nTo: list@lists.test\n"
        f"Subject: Re: {chosen.choice(WORDS)}\nMessage-ID: <{number}.a@lists.test>\n"
        f"In-Reply-To: <{number}.b@lists.test>\nList-Id: <dev.lists.test>\n\n"
        f"> {' '.join(chosen.sample(WORDS, 8))}\n{' '.join(chosen.sample(WORDS, 12))}\n"
    ).encode()


def shop(number, name, words):
    """A newsletter; of different senders only the form is alike."""
    chosen = random.Random(number)
    return (
        f"From: {name} <news@{name.lower()}.test>\nTo: u@mx.test\nSubject: {chosen.choice(SALE)}\n"
        f"Message-ID: <{number}@{name.lower()}.test>\nList-Unsubscribe: <https://{name}.test/u>\n"
        f"X-Campaign: {name}{number}\nMIME-Version: 1.0\nContent-Type: text/html\n\n"
        f"<html><body><table><tr><td><b>{' '.join(chosen.sample(words, 6))}</b></td></tr></table>"
        f"<a href='https://{name}.test/'>click</a></body></html>\n"
    ).encode()


FIRST = (
    b"List-Id: <dev.lists.test>\n"
    b"Received: from lists.test by mx.test; Mon, 1 Jun 2026 10:00:00 +0000\n"
) + shop(1000, "Good", WORDS)
"""The first newsletter that is wanted: it comes by the list."""


def write_mail(folder):
    """Write 200 messages of the list and 60 newsletters that are spam; return both folders."""
    sides = folder / "ham", folder / "spam"
    for side in sides:
        side.mkdir(parents=True)
    for number in range(200):
        (sides[0] / f"{number}.eml").write_bytes(listed(number))
        if number % 10 < 3:
            spam = shop(number, f"Bad{number % 7}", SALE)
            (sides[1] / f"{number}.eml").write_bytes(spam)
    return sides
