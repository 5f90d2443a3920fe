"""How much harm do one user's moves of mail that others have trained, and what do equal labels add?

The site of record 0030: 4,546 trained messages, the mail of other users is scored. One user moves
trained messages to the other side, all on one day: at random, or the worst of ten at each step. An
owner of 0 is the rule before record 0064: one label for each message, which any user moves. Then
the same number of altered copies, which were never trained. At the end, several users repeat the
labels of 1,000 trained messages.

    PYTHONPATH=scripts/bench SPAMNB_CORPUS=... python scripts/experiments/0064-labels-of-others.py
"""

import random
from multiprocessing import get_context

from poisoning import Site, site

MOVES = (50, 100, 200, 500)
ACCOUNTS = (1, 3, 10)
MADE: list[Site] = []
"""the site, which the processes inherit"""


def moved(label: str, owner: int, *, copies: bool, tries: int) -> list[str]:
    """Return the errors after each number of moves to a label."""
    made, dice = MADE[0], random.Random(3)
    others = [raw for raw, truth in made.trained if truth != label]
    dice.shuffle(others)
    made.owner = owner
    lines = []
    for number in range(MOVES[-1]):
        some = others[number * tries % len(others) :][:tries]
        if copies:
            some = [b"X-N: %d\n" % number + raw for raw in some]
        examples = [made.model.example(raw) for raw in some]
        if len(examples) > 1:
            examples.sort(key=lambda one: made.trial(one, label).of(label), reverse=True)
        made.say(examples[0], label)
        if number + 1 in MOVES:
            lines.append(f"{number + 1:4d}  {made.harm()}")
    return lines


def repeated(accounts: int) -> list[str]:
    """Return the errors after several users have given 1,000 trained messages their own label."""
    made = MADE[0]
    some = random.Random(4).sample(made.trained, 1000)
    for account in range(accounts):
        made.owner = made.model.owner(f"user{account}")
        for raw, label in some:
            made.say(made.model.example(raw), label, f"user{account}")
    return [f"{accounts:4d}  {made.harm()}"]


def main() -> None:
    """Print all tables; each runs in a process of its own, on the same model."""
    made = site()
    MADE.append(made)
    print("before", made.harm(), flush=True)
    mallory = made.model.owner("mallory")
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for tries in (1, 10):
            for label in ("ham", "spam"):
                for name, owner, copies in (
                    ("one label for all users", 0, False),
                    ("a label of each owner", mallory, False),
                    ("altered copies", mallory, True),
                ):
                    print(f"moves to {label}, best of {tries}: {name}")
                    more = {"copies": copies, "tries": tries}
                    print("\n".join(pool.apply(moved, (label, owner), more)), flush=True)
            for accounts in ACCOUNTS if tries == 1 else ():
                print("1,000 labels repeated by so many accounts")
                print("\n".join(pool.apply(repeated, (accounts,))), flush=True)


if __name__ == "__main__":
    main()
