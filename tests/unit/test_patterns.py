"""Every pattern finds on this Python what another engine finds.

Python's own engine had faults in possessive groups before 3.11.5: one that failed behind something
optional did not go back, and what stood captured in it was lost. Debian 12 has 3.11.2, and there
three patterns took text for a header field that was none, half an mbox line for a whole one, and
missed the file names of RFC 2231. The package `regex` has never had these faults.
"""

import importlib
import pkgutil
import random
import re
from re import _constants as ops
from re import _parser as parser

import pytest
import regex

import spamnb

STRINGS = 3000
FLAGS = {
    re.IGNORECASE: regex.IGNORECASE,
    re.MULTILINE: regex.MULTILINE,
    re.DOTALL: regex.DOTALL,
    re.VERBOSE: regex.VERBOSE,
}


def patterns():
    """All patterns that modules hold by a name, each once."""
    found = {}
    for module in pkgutil.walk_packages(spamnb.__path__, "spamnb."):
        if not module.name.endswith("__main__"):
            held = vars(importlib.import_module(module.name))
            for name, value in held.items():
                for one in _flat(value):
                    found.setdefault(one, f"{module.name}.{name}")
    return found


def _flat(value):
    """The patterns in a value, or in a table of them."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _flat(one)


def bits(tree):
    """The characters of a parsed pattern, and its literal runs."""
    run = ""
    for op, value in tree:
        if op is ops.LITERAL:
            run += chr(value)
            yield chr(value)
            continue
        if run:
            yield run
        run = ""
        if op is ops.RANGE:
            yield chr(value[0])
            yield chr(value[1])
        elif op is ops.NOT_LITERAL:
            yield chr(value)
        else:
            yield from _within(value)
    if run:
        yield run


def _within(value):
    """The bits of everything parsed that stands somewhere in an operation's argument."""
    if isinstance(value, parser.SubPattern):
        yield from bits(value)
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            yield from bits(value)
        else:
            for one in value:
                yield from _within(one)


def spans(engine, text):
    return [(found.span(), found.groups()) for found in engine.finditer(text)]


HELD = patterns()


def test_patterns_are_found():
    assert len(HELD) > 80
    assert "spamnb.mail.content.PARAM" in HELD.values()


@pytest.mark.parametrize("pattern", HELD, ids=HELD.values())
def test_both_engines_find_the_same(pattern):
    flags = sum(theirs for ours, theirs in FLAGS.items() if pattern.flags & ours)
    other = regex.compile(pattern.pattern, flags)
    text = isinstance(pattern.pattern, str)
    source = pattern.pattern if text else pattern.pattern.decode("latin-1")
    own = sorted(set(bits(parser.parse(source, pattern.flags & ~re.UNICODE))))
    usual = ("a", "Z", "1", " ", "\n", ".", ":")
    pieces = [piece for piece in (*own, *usual) if text or max(piece) < "\u0100"]
    dice = random.Random(1)
    for _ in range(STRINGS):
        made = "".join(dice.choices(pieces, k=dice.randint(1, 12)))
        given = made if text else made.encode("latin-1")
        assert spans(pattern, given) == spans(other, given), given
