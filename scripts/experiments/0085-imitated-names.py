"""Which facts about names in links, senders and recipients tell spam apart? The record has figures.

For each family: three orders of the mail of the folders, from an empty model, each message scored
before it is taught. Prints 1-AUC of each order. "today" is the program, "none" is without all
of its facts of this kind, "links" without those on imitation; the others add facts to the program
that were tried and left out. With --imitate SHARE so many of the ham come once more as spam, from
an address at a domain that imitates the recipient's, each time another one.

    python scripts/experiments/0085-imitated-names.py [--imitate .06] FOLDER[,FOLDER] [FAMILY ...]
"""

import argparse
import os
import random
import re
import sys
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

from labelled_mail import clean, files

from spamnb.lab.runs import Options, Samples, read_samples, run
from spamnb.lab.statistics import auc
from spamnb.model import tokens
from spamnb.model.tokens import (
    LABEL_COMPARED,
    HeaderAddress,
    TokenLocation,
    address_in,
    main_label,
    registered,
)

SEEDS = (7, 8, 9)
OWN = "brightwell.example"
FROM = re.compile(rb"(?im)^from:[^\n]*\n(?:[ \t][^\n]*\n)*")
TO = re.compile(rb"(?im)^to:[^\n]*\n(?:[ \t][^\n]*\n)*")
ADDED = ("support", "mail", "it", "secure", "portal", "login", "payroll", "desk", "files")
TOPS = ("com", "net", "org", "co", "info", "xyz", "top", "shop", "online", "click")
IMITATIONS = ("link near", "link within", "link top", "link of", "sender ", "name has")
SHORTENERS = (b"bit.ly", b"tinyurl.com", b"t.co", b"goo.gl", b"ow.ly", b"is.gd", b"cutt.ly",
              b"rebrand.ly", b"rb.gy", b"t.ly", b"buff.ly", b"shorturl.at")  # fmt: skip
seen = {}
"""domains by the number of earlier messages with them, for the families of age"""


class Names(NamedTuple):
    """Who a message is from and to, and its links."""

    author: HeaderAddress
    to: HeaderAddress
    hosts: list[bytes]
    paths: list[bytes]


def age(domain):
    number = seen.get(domain, 0)
    seen[domain] = number + 1
    return b"seen %d" % number.bit_length()


def recipient_facts(names):
    own, address = main_label(names.to.host), names.to.local + b"@" + names.to.host
    if names.author.domain == names.to.domain:
        return []
    found = [b"in path %d" % any(address in one for one in names.paths)] if names.hosts else []
    if len(own) >= LABEL_COMPARED:
        found.append(b"in name %d" % (own in names.author.name))
        found.append(b"in link %d" % any(own in host for host in names.hosts))
    return found


def form_facts(names):
    labels = [main_label(host) for host in (names.author.host, *dict.fromkeys(names.hosts))]
    return [
        line
        for one in labels
        for line in (
            b"hyphens %d" % min(one.count(b"-"), 3),
            b"digits %d" % min(sum(map(one.count, b"0123456789")), 4),
            b"length %d" % min(len(one) // 4, 6),
        )
    ]


FAMILIES = {
    "recipient": recipient_facts,
    "form": form_facts,
    "sender-age": lambda names: [age(names.author.domain)],
    "link-age": lambda names: [age(one) for one in dict.fromkeys(map(registered, names.hosts))],
    "shortener": lambda names: [b"short"] * any(one in SHORTENERS for one in names.hosts),
}
shapes_of_today = tokens.shape_fields


def is_new(line):
    return line[:-1] in (b"name-k", b"own-k")


def is_imitation(line):
    return line.decode("latin-1").startswith(IMITATIONS)


def shapes(family, headers, text, links):
    found = shapes_of_today(headers, text, links)
    if family in ("none", "links"):
        gone = is_imitation if family == "links" else lambda one: is_new(one) or is_imitation(one)
        found = [
            (place, name, b"\n".join(one for one in lines.split(b"\n") if not gone(one)))
            if place in (TokenLocation.SENDER, TokenLocation.LINK_SHAPE) and not name
            else (place, name, lines)
            for place, name, lines in found
        ]
    elif family in FAMILIES:
        first = dict(reversed(headers))
        author, to = address_in(first.get(b"from", b"")), address_in(first.get(b"to", b""))
        names = Names(author, to, *tokens.hosts_and_paths(links))
        if lines := author.host and FAMILIES[family](names):
            found.append((TokenLocation.LINK_SHAPE, b"tried", b"\n".join(lines)))
    return found


def imitation(rng):
    """A domain like the recipient's: a letter replaced, exchanged or left out, or a word added."""
    name = OWN.partition(".")[0]
    at = rng.randrange(1, len(name) - 1)
    letter = rng.choice("abcdefghijklmnopqrstuvwxyz0123456789")
    names = (
        name[:at] + letter + name[at + 1 :],
        name[:at] + name[at + 1] + name[at] + name[at + 2 :],
        name[:at] + name[at + 1 :],
        f"{name}-{rng.choice(ADDED)}",
        name,
    )
    return f"{rng.choice(names)}.{rng.choice(TOPS)}"


def rows_of(folders, share):
    rng = random.Random(5)
    rows = []
    for folder in folders:
        for path, label in files(folder):
            raw = clean(path.read_bytes())
            if share:
                raw = TO.sub(f"To: ann@{OWN}\n".encode(), raw, count=1)
                if label == "ham" and rng.random() < share:
                    author = f"From: {rng.choice(ADDED)} <desk@{imitation(rng)}>\n".encode()
                    forged = FROM.sub(lambda _, author=author: author, raw, count=1)
                    rows.append((forged + b"\n", "spam"))
            rows.append((raw, label))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folders")
    parser.add_argument("families", nargs="*", default=["none", "links", "today", *FAMILIES])
    parser.add_argument("--imitate", type=float, default=0.0)
    chosen = parser.parse_args()
    rows = rows_of([Path(one) for one in chosen.folders.split(",")], chosen.imitate)
    for family in chosen.families:
        tokens.shape_fields = lambda *given, family=family: shapes(family, *given)
        found = []
        for seed in SEEDS:
            order = list(range(len(rows)))
            random.Random(seed).shuffle(order)
            seen.clear()
            samples: Samples = read_samples([rows[at] for at in order], Options())
            z = run(samples, Options(feedback="full", jobs=1)).z
            found.append(100 * (1 - auc(samples.truth == 1, z[:, 1] - z[:, 0])))
        print(f"{family:12}", *(f"{one:.3f}" for one in found), flush=True)


if __name__ == "__main__":
    main()
