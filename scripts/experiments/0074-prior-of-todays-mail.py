"""Does a prior that is also made from newer mail help mail that it was not made from?

Each collection is left out in turn; priors are made from the others, of features of at least three
authors and of one or two collections, and the stream of the collection left out begins with each.
No prior is better than the shipped one on all collections; the record has the figures.

    python scripts/experiments/0074-prior-of-todays-mail.py NAME=FOLDER NAME=FOLDER ...
"""

import json
import random
import sys
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from io import StringIO
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(PROJECT / "scripts" / "bench")]

from labelled_mail import clean, files

from spamnb.engine.filter import OWNER, Filter
from spamnb.engine.prior import json_line, make_prior, read_prior, shipped_prior
from spamnb.engine.values import Learn
from spamnb.lab.decisions import Site, play
from spamnb.lab.runs import Options, read_samples
from spamnb.model.events import Recipe
from spamnb.store.model_store import temporary_store

SEEDS = (7, 8)
MOST = 1500
loader = SourceFileLoader("maker", str(PROJECT / "scripts" / "make-prior"))
maker = module_from_spec(spec_from_loader("maker", loader))
loader.exec_module(maker)


def prior_of(collections, least):
    """Return the prior of some collections, of features that `least` of them have."""
    rows = maker.ordered(row for rows in collections.values() for row in rows)
    place = {raw: name for name, part in collections.items() for raw, _ in part}
    model = Filter(
        temporary_store(Recipe(kind="corrected", labels=maker.LABELS, key=bytes(32), alpha=0.01))
    )
    authors, places = defaultdict(set), defaultdict(set)
    for start in range(0, len(rows), maker.BATCH):
        batch = [
            (model.example(raw), raw, label) for raw, label in rows[start : start + maker.BATCH]
        ]
        for example, raw, _ in batch:
            for id_ in (one for ids in example.ids for one in ids.tolist()):
                authors[id_].add(maker.author(raw))
                places[id_].add(place[raw])
        model.teach([Learn(one, maker.LABELS.index(label), OWNER, 1) for one, _, label in batch])
    wide = {id_ for id_, known in authors.items() if len(known) >= maker.SENDERS}
    several = frozenset(id_ for id_ in wide if len(places[id_]) >= least)
    head, *lines = make_prior(model.store, ids=several)
    named = maker.names(rows)
    kept = sorted(line for line in lines if not maker.is_named(line, named))
    head = json_line(json.loads(head) | {"features": len(kept)})
    return read_prior(StringIO("".join([head, *kept])))


def show(name, rows, prior):
    for teaching in ("errors", "full"):
        found = []
        for seed in SEEDS:
            mail = rows[:]
            random.Random(seed).shuffle(mail)
            samples = read_samples(mail[:MOST], options := Options(prior=prior))
            one = play(samples, options, Site(teaching, seed=seed))
            first, _ = one.filed_of_first[300]
            found.append((one.filed_percent, one.ham_filed, first, one.auc_complement_percent))
        means = [sum(column) / len(column) for column in zip(*found, strict=True)]
        print(f"{name:30} {teaching:6}", *(f"{mean:6.2f}" for mean in means), flush=True)


def main():
    named = (text.partition("=") for text in sys.argv[1:])
    mail = {
        name: [(clean(path.read_bytes()), label) for path, label in files(Path(folder))]
        for name, _, folder in named
    }
    for left, rows in mail.items():
        others = {name: part for name, part in mail.items() if name != left}
        show(f"{left}, no prior", rows, None)
        show(f"{left}, shipped", rows, shipped_prior()[0])
        for least in (2, 1):
            show(f"{left}, of {least} or more", rows, prior_of(others, least))


if __name__ == "__main__":
    main()
