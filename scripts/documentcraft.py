#!/usr/bin/env python3
"""Generate a collection of documents: scripts/documentcraft.py DIR [--documents N] [--seed S].

Ten labels of very different size (the smallest has 1 % of the documents), to measure how well rare
labels are found. It models what makes real text hard: words by Zipf's law, labels as mixtures of
themes that they share with other labels, phrases (so words are far from independent), bursts (a
used word is used again), lengths from one line to two pages, documents that quote another label,
and one wrong label in a hundred. The same arguments give the same bytes. Writes
DIR/train/LABEL/NNNN.txt and DIR/test/LABEL/NNNN.txt.
"""

from __future__ import annotations

import argparse
from bisect import bisect
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from mailcraft import Dice

SHARES = {
    "trade": 0.34, "crops": 0.22, "rail": 0.14, "tax": 0.10, "sport": 0.07, "energy": 0.05,
    "metals": 0.035, "health": 0.02, "shipping": 0.015, "weather": 0.01,
}  # fmt: skip
SYLLABLES = (
    "ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "xa",
    "lor", "men", "tas", "rin", "dol", "ver", "nis", "tor", "pla",
)  # fmt: skip
COMMON = 4000
"""words that any document may use"""
OWN = 240
"""words of one theme"""
THEMES = 4
"""themes of each label; it shares as many with its neighbours"""
PHRASES = 40


class Theme(NamedTuple):
    """A theme: its words, most frequent first, and its phrases."""

    words: list[str]
    phrases: list[list[str]]


def word(number: int) -> str:
    """Return the word of a rank; rare words are longer."""
    number, made = number + 1, ""
    while number or len(made) < 3:
        number, digit = divmod(number, len(SYLLABLES))
        made += SYLLABLES[digit]
    return made


def zipf(dice: Dice, most: int, steep: float = 1.1) -> int:
    """Return a rank from 0 up, by Zipf's law."""
    rank = int((1 - dice.roll()) ** (-1 / steep)) - 1
    return rank if rank < most else int(dice.roll() * most)


def theme(seed: int, number: int) -> Theme:
    dice = Dice(seed, "theme", number)
    first = COMMON + number * OWN
    # A third of the words are common words that this theme uses more often.
    words = [word(zipf(dice, COMMON, 0.4) if dice.chance(0.35) else first + i) for i in range(OWN)]
    phrases = [dice.some(words, dice.number(2, 4)) for _ in range(PHRASES)]
    return Theme(words, phrases)


class Subject(NamedTuple):
    """Return the themes of a label with their weights."""

    themes: list[Theme]
    sums: list[float]


def subjects(seed: int) -> dict[str, Subject]:
    every = [theme(seed, number) for number in range(THEMES * len(SHARES))]
    made = {}
    for place, label in enumerate(SHARES):
        own = [(THEMES * place + i) % len(every) for i in range(THEMES)]
        lent = [(own[0] + 3 * THEMES + 5 * i) % len(every) for i in range(THEMES)]
        weights = [1.0, 0.7, 0.5, 0.3, *([0.22] * THEMES)]
        made[label] = Subject([every[i] for i in own + lent], list(accumulate(weights)))
    return made


def document(label: str, about: dict[str, Subject], dice: Dice) -> str:
    """Return one document; most sentences keep the theme of the previous one."""
    length = int(25 * (1 - dice.roll()) ** -0.75)
    used: list[str] = []
    other = dice.pick(list(about)) if dice.chance(0.25) else label
    now = None
    while len(used) < min(length, 600):
        if now is None or dice.chance(0.3):
            subject = about[other if dice.chance(0.3) else label]
            now = subject.themes[bisect(subject.sums, dice.roll() * subject.sums[-1])]
        for _ in range(dice.number(5, 14)):
            roll = dice.roll()
            if roll < 0.15 and used:
                used.append(dice.pick(used[-60:]))
            elif roll < 0.22:
                used += dice.pick(now.phrases)
            elif roll < 0.42:
                used.append(now.words[zipf(dice, OWN)])
            else:
                used.append(word(zipf(dice, COMMON)))
    lines = [" ".join(used[i : i + 12]) for i in range(0, len(used), 12)]
    return "\n".join(lines) + "\n"


def collection(count: int, seed: int = 1, part: str = "train") -> list[tuple[str, str]]:
    """Return (text, label) of shuffled documents."""
    about, labels = subjects(seed), list(SHARES)
    sums = list(accumulate(SHARES.values()))
    made = []
    for number in range(count):
        dice = Dice(seed, part, number)
        label = labels[min(bisect(sums, dice.roll() * sums[-1]), len(labels) - 1)]
        text = document(label, about, dice)
        made.append((text, dice.pick(labels) if dice.chance(0.01) else label))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=4000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    given = parser.parse_args()
    for part, count in (("train", given.documents), ("test", given.documents // 2)):
        for number, (text, label) in enumerate(collection(count, given.seed, part)):
            place = given.folder / part / label
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:05d}.txt").write_text(text)


if __name__ == "__main__":
    main()
