"""How much harm do few labels a day by one user do, or one label each by many accounts?

    PYTHONPATH=scripts/bench python 0066-slow-and-many.py CORPUS (many | slow) (spam | ham) [--old]

`many`: 20 accounts with one label each, on one day. `slow`: one user, five labels a day, 100 in
all. Prints the errors on the mail of others, in percent, before the attack, after 1, 5, 10, 20, 50
and 100 labels, and the largest; and how often a label of the attacker was confirmed (True),
contradicted (False) or not checked. `--old` is the budget of each user and day alone (record 0030).

Results: record 0066.
"""

import argparse
from collections import Counter
from pathlib import Path

import poisoning

from spamnb.engine import learner, planner

PLACES = (1, 5, 10, 20, 50, 100)


def main() -> None:
    """Attack one site, and print what it did."""
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("attack", choices=("many", "slow"))
    options.add_argument("label", choices=("spam", "ham"))
    options.add_argument("--tries", type=int, default=15)
    options.add_argument("--old", action="store_true")
    given = options.parse_args()
    checks: Counter[bool | None] = Counter()
    moved = planner.moved

    def counted(before: int, *, agrees: bool | None) -> int:
        checks[agrees] += 1
        return moved(before, agrees=agrees)

    planner.moved = counted
    if given.old:
        learner.SHARED_STEPS = learner.CREDIT_STEPS = float("inf")
        planner.moved = lambda _, *, agrees: planner.MOST  # noqa: ARG005 - everyone is believed
    labels, people = (20, 20) if given.attack == "many" else (100, 1)
    site = poisoning.site(given.corpus)
    site.per_day = 20 if given.attack == "many" else 5
    print("before:", site.harm())
    found = poisoning.spend(site, given.label, labels, tries=given.tries, people=people)
    errors = [harm.of(given.label)[0] for harm in found]
    print(*(f"{place}: {errors[place - 1]:.2f}" for place in PLACES if place <= labels))
    print(f"largest: {max(errors):.2f}; checks, with those of tries: {dict(checks)}")


if __name__ == "__main__":
    main()
