"""Passages: pieces of a message's text that are scored as if they stood alone.

Evidence is averaged over a message, so good text below a spam makes it a doubtful one. The
visible text is cut into blocks of equal size (`features`), and each feature belongs to the block in
which it occurs first. So the sums of neighbouring blocks are those of a passage, and no feature is
counted twice. A passage is scored with everything of the message that is no visible text: header,
subject and shapes of links.

Pure arithmetic. Every sum runs over one message alone, in a fixed order, so that a message gets the
same score in every batch.
"""

from __future__ import annotations

from math import inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamnb.model.smoothing import Floats

LENGTHS = (1, 2, 4)
"""Blocks in a passage: 40, 80 and 160 words. Each is twice the one before."""
_BY_LENGTH = np.array(LENGTHS)[:, None]
CHANCE = 0.05
"""Nats for each e-fold of passages, of which one leads by chance. With 0, passages make the rank of
ordinary mail worse (docs/decisions/0079)."""


class Passage(NamedTuple):
    """The strongest passage of a message."""

    lead: float = -inf
    """of the spam-like labels in its joint score; -inf for a message without passages"""
    first: int = 0
    """the number of its first block, from 1"""
    blocks: int = 0


class Passages(NamedTuple):
    """The passages of some messages: of each length one from each block on, if it exists.

    The places [P] are the blocks of all messages. Before those of each message is one for what is
    outside of its text, where no passage begins.
    """

    exists: NDArray[np.bool_]
    """[lengths, P]; a passage ends with its message, and is never the whole of its text"""
    owner: NDArray[np.int64]
    """[P] the number of the message"""
    ends: list[int]
    """of each message: the place after its last one"""
    sums: Floats
    """[V, lengths, P] of the values of the features"""
    sizes: Floats
    """[lengths, P] how many features are in it"""

    def strongest(self, leads: Floats) -> list[Passage]:
        """Return the strongest passage of each message, given the lead of each passage."""
        leads = np.where(self.exists, leads, -inf)
        counts = np.add.reduce(self.exists, dtype=np.int64).cumsum().take(np.array(self.ends) - 1)
        found, begin, before = [], 0, 0
        for end, count in zip(self.ends, counts.tolist(), strict=True):
            mine = leads[:, begin:end]
            length, first = divmod(int(mine.argmax()), end - begin)
            lead = float(mine[length, first]) - CHANCE * log(max(count - before, 1))
            found.append(Passage(lead, first, LENGTHS[length]))
            begin, before = end, count
        return found


def passages(
    values: Floats, blocks: NDArray[np.uint8], sizes: NDArray[np.int64], groups: int
) -> Passages:
    """Return the passages of messages, given values [V, F] of their features.

    `blocks` has the block of each feature, 0 for one that is outside of the visible text. `sizes`
    has the number of features of each group of each message; the first group has the text.
    """
    stops = sizes.cumsum()
    texts = zip((stops - sizes)[::groups].tolist(), stops[::groups].tolist(), strict=True)
    most = np.array([blocks[start:stop].max(initial=0) for start, stop in texts], np.int64)
    ends = (most + 1).cumsum()
    begins, total = ends - most - 1, int(ends[-1])
    # The other groups are in no passage: they go to a place behind all others.
    base = np.full(len(sizes), total)
    base[::groups] = begins
    place = base.repeat(sizes) + blocks
    width = total + 1
    lines = np.arange(0, len(values) * width, width)
    flat = np.bincount((lines[:, None] + place).ravel(), values.ravel(), len(values) * width)
    counts = np.bincount(place, minlength=width)
    every: Floats = np.concatenate((flat, counts), dtype=np.float64)
    every = every.reshape(-1, width)[:, :total]
    runs = [every]
    for length in LENGTHS[:-1]:
        longer = runs[-1].copy()
        longer[:, :-length] += runs[-1][:, length:]
        runs.append(longer)
    owner = np.arange(len(most)).repeat(most + 1)
    outside = every.take(begins, axis=1).take(owner, axis=1)
    sums = np.stack(runs, axis=1) + outside[:, None]
    left = ends.take(owner) - np.arange(total)
    left[begins] = 0
    exists = np.minimum(left, most.take(owner) - 1) >= _BY_LENGTH
    return Passages(exists, owner, ends.tolist(), sums[:-1], sums[-1])
