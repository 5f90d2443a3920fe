"""Rules of the source: layers, imports, names.

Each rule is a function from sources (name of module -> text) to complaints, so that every rule is
also tried on a made-up source that breaks it.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
LEVELS = (
    {"errors"},
    {"telemetry"},
    {"mail"},
    {"model"},
    {"policy", "bayes"},
    {"store", "records", "engine", "feedback", "scan", "operations", "maintenance"}
    | {"fleet", "settings", "net", "timemachine", "auth", "setup"},
    {"lab", "smtp", "milter", "scanner", "imap", "maildir", "console", "opensmtpd"},
    {"daemon"},
    {"cli"},
    {"__main__"},
)
"""from below: pure packages, work on a home, protocols, processes, commands"""
PURE = {"mail", "model", "policy"}
PROTOCOLS = {"smtp", "milter", "scanner", "imap", "maildir", "opensmtpd"}
KNOW_FLEETS = {"fleet", "operations", "daemon", "cli"}
PUBLIC = {"spamnb", "spamnb.bayes"}
"""What users import; no module of the serving code imports it."""
IMPURE = {"asyncio", "logging", "os", "pathlib", "random", "socket", "subprocess", "threading"}
IMPURE |= {"tempfile", "time"}
EMPTY_NAMES = {"base", "common", "helper", "helpers", "manager", "util", "utils"}


def package_sources():
    """Read spamnb: module name -> text. A package has the name of its folder."""
    sources = {}
    for path in sorted((PROJECT / "spamnb").rglob("*.py")):
        parts = path.relative_to(PROJECT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text("utf-8")
    return sources


def program_sources():
    """Read what else we wrote in Python: tests and scripts, by path."""
    paths = [*(PROJECT / "tests").rglob("*.py"), *(PROJECT / "scripts").rglob("*")]
    programs = {}
    for path in paths:
        if path.suffix == ".py" or (path.is_file() and path.suffix == ""):
            text = path.read_text("utf-8")
            if path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
                programs[str(path.relative_to(PROJECT))] = text
    return programs


@cache
def nodes(text):
    """Return all nodes of the syntax tree of a source, the module first."""
    return list(ast.walk(ast.parse(text)))


def imports(name, text, sources):
    """List (line, module) for every import, also those inside functions, relative ones resolved."""
    is_package = any(other.startswith(name + ".") for other in sources)
    found = []
    for node in nodes(text):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            parts = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found.append((node.lineno, inner if inner in sources else source))
    return found


def own_imports(sources):
    """List (importer, line, imported) within the package."""
    return [
        (name, line, target)
        for name, text in sources.items()
        for line, target in imports(name, text, sources)
        if target.split(".")[0] == "spamnb"
    ]


def level(name):
    """Return the number of a module's level; the package itself is above all."""
    if name == "spamnb":
        return len(LEVELS)
    top = name.split(".")[1]
    return next((number for number, packages in enumerate(LEVELS) if top in packages), None)


def climbing(sources):
    """Complain of modules on no level and of imports that go up."""
    complaints = [f"{name} is on no level" for name in sources if level(name) is None]
    for name, line, target in own_imports(sources):
        here, there = level(name), level(target)
        if here is not None and there is not None and there > here:
            complaints.append(f"{name}:{line} imports {target} from above")
    return complaints


def public_imports(sources):
    """Complain of serving code that imports the public interface or the family of classifiers."""
    return [
        f"{name}:{line} imports the public {target}"
        for name, line, target in own_imports(sources)
        if target in PUBLIC | {f"spamnb.bayes.{target.rpartition('.')[2]}"}
        and name != "spamnb.__main__"
        and name.split(".")[1:2] not in (["bayes"], ["lab"])
    ]


def protocols_that_meet(sources):
    """Complain of a protocol that imports another."""
    complaints = []
    for name, line, target in own_imports(sources):
        here, there = name.split(".")[1:2], target.split(".")[1:2]
        if here != there and {*here, *there} <= PROTOCOLS and here != ["opensmtpd"]:
            complaints.append(f"{name}:{line} imports another protocol, {target}")
    return complaints


def private_imports(sources):
    """Complain of private names that another module imports."""
    return [
        f"{name}:{node.lineno} imports the private {alias.name}"
        for name, text in sources.items()
        for node in nodes(text)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spamnb")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def cycles(sources):
    """Complain of modules that import each other in a ring."""
    graph = {name: set() for name in sources}
    for name, _, target in own_imports(sources):
        if target in graph and target != name:
            graph[name].add(target)
    while leaves := [name for name, targets in graph.items() if not targets]:
        for leaf in leaves:
            del graph[leaf]
        for targets in graph.values():
            targets.difference_update(leaves)
    # What is left is in a cycle or imports one: those that no module left imports are the latter.
    while graph and (tops := graph.keys() - set().union(*graph.values())):
        for top in tops:
            del graph[top]
    return [f"a ring of imports: {', '.join(sorted(graph))}"] if graph else []


def walls(sources):
    """Complain of foreign packages outside of their place."""
    places = {"lmdb": "spamnb.store", "click": "spamnb.cli", "aiosmtpd": "spamnb.smtp"}
    places["matplotlib"] = "spamnb.lab.report"
    places |= dict.fromkeys(("starlette", "uvicorn", "jinja2", "nh3"), "spamnb.console")
    places |= dict.fromkeys(("valkey", "psycopg"), "spamnb.fleet")
    places |= dict.fromkeys(("dns", "publicsuffixlist"), "spamnb.auth")
    places["cryptography"] = ("spamnb.fleet", "spamnb.auth")
    complaints, knowing = [], set()
    for name, text in sources.items():
        for line, target in imports(name, text, sources):
            package = target.split(".")[0]
            place = places.get(package, "")
            owners = (place,) if isinstance(place, str) else place
            if place and not any(f"{name}.".startswith(f"{one}.") for one in owners):
                complaints.append(f"{name}:{line} imports {package}, which belongs to {place}")
            elif package == "lmdb":
                knowing.add(name)
            if PURE & {*name.split(".")[1:2]} and package in IMPURE:
                complaints.append(f"{name}:{line} imports {package} in a pure package")
    if len(knowing) > 1:
        complaints.append(f"more than one module imports lmdb: {', '.join(sorted(knowing))}")
    return complaints


def fleets(sources):
    """Complain of imports of the fleet where a model of one host is all that is known."""
    return [
        f"{name}:{line} imports {target}, and knows one host alone"
        for name, text in sources.items()
        if name.split(".")[1:2] not in ([one] for one in KNOW_FLEETS)
        for line, target in imports(name, text, sources)
        if target.startswith("spamnb.fleet")
    ]


def side_effects(sources):
    """Complain of calls in core that reach outside."""
    return [
        f"{name}:{node.lineno} calls {node.func.id} in a pure package"
        for name, text in sources.items()
        if PURE & {*name.split(".")[1:2]}
        for node in nodes(text)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input", "exec", "eval"}
    ]


def silent_modules(sources):
    """Complain of modules without a docstring; an empty file has nothing to say."""
    return [
        f"{name} has no docstring"
        for name, text in sources.items()
        if text.strip() and not ast.get_docstring(nodes(text)[0])
    ]


def empty_names(sources):
    """Modules have names that say what they hold."""
    return [
        f"{name} is named after nothing"
        for name in sources
        if EMPTY_NAMES & set(name.split(".")[-1].strip("_").split("_"))
    ]


PACKAGE_RULES = [
    climbing,
    public_imports,
    protocols_that_meet,
    private_imports,
    cycles,
    walls,
    fleets,
    side_effects,
    silent_modules,
    empty_names,
]


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule):
    """No module of spamnb gives cause for complaint."""
    sources = package_sources()
    assert "spamnb.model.events" in sources
    assert rule(sources) == []


def test_tests_and_scripts_have_docstrings():
    """What is not shipped is read as often."""
    sources = program_sources()
    assert "scripts/make-sample" in sources
    assert "tests/test_architecture.py" in sources
    assert silent_modules(sources) == []


GOOD = {
    "spamnb": '"""D."""\nfrom spamnb.engine.filter import Filter\n',
    "spamnb.errors": '"""D."""\nclass Twice(Exception):\n    """D."""\n',
    "spamnb.mail": "",
    "spamnb.mail.message": '"""D."""\nfrom spamnb import errors\nimport numpy\n',
    "spamnb.mail.html": '"""D."""\nfrom . import message\nfrom .message import Message\n',
    "spamnb.model": "",
    "spamnb.model.events": '"""D."""\nfrom spamnb.mail.message import Message\n',
    "spamnb.store": "",
    "spamnb.store.disk": '"""D."""\nimport lmdb\nfrom spamnb.model.events import Event\n',
    "spamnb.engine.filter": '"""D."""\nfrom ..store import disk\nimport time\n',
    "spamnb.console.server": '"""D."""\nfrom spamnb.engine.filter import Filter\n',
    "spamnb.smtp": "",
    "spamnb.smtp.post": '"""D."""\nimport aiosmtpd.controller\nfrom . import replies\n',
    "spamnb.smtp.replies": '"""D."""\n',
    "spamnb.cli.main": '"""D."""\nimport click\nfrom spamnb.daemon import run\n',
    "spamnb.daemon": '"""D."""\nfrom spamnb.console import server\n',
    "spamnb.__main__": '"""D."""\nfrom spamnb.cli.main import run\n',
}


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_a_source_tree_without_faults_passes_each_rule(rule):
    """Imports down, within a package, and relative ones are all allowed."""
    assert rule(GOOD) == []


@pytest.mark.parametrize(
    ("rule", "module", "text"),
    [
        (climbing, "spamnb.mail.a", "from spamnb.store import disk"),
        (climbing, "spamnb.mail.a", "def f():\n    import spamnb.engine.filter"),
        (climbing, "spamnb.errors", "from spamnb.model import events"),
        (climbing, "spamnb.mail.a", "from ..model import events"),
        (climbing, "spamnb.engine.a", "from spamnb.smtp import post"),
        (climbing, "spamnb.settings", "import spamnb.daemon"),
        (climbing, "spamnb.daemon", "if TYPE_CHECKING:\n    from spamnb.cli.main import run"),
        (climbing, "spamnb.attic.a", ""),
        (public_imports, "spamnb.engine.a", "from spamnb import Filter"),
        (public_imports, "spamnb.cli.a", "import spamnb"),
        (public_imports, "spamnb.policy.a", "from spamnb.bayes import GaussianNB"),
        (public_imports, "spamnb.cli.a", "from .. import __version__"),
        (protocols_that_meet, "spamnb.milter.a", "from spamnb.smtp.replies import OK"),
        (protocols_that_meet, "spamnb.milter.a", "from ..smtp import replies"),
        (private_imports, "spamnb.store.a", "from spamnb.errors import _text"),
        (cycles, "spamnb.mail.message", "from spamnb.mail import html"),
        (cycles, "spamnb.errors", "def f():\n    import spamnb.mail.message"),
        (walls, "spamnb.engine.a", "import lmdb"),
        (fleets, "spamnb.engine.a", "from spamnb.fleet.store import FleetStore"),
        (walls, "spamnb.store.a", "from lmdb import Environment"),
        (walls, "spamnb.console.a", "import click"),
        (walls, "spamnb.engine.a", "def f():\n    from matplotlib.figure import Figure"),
        (walls, "spamnb.console.a", "from aiosmtpd.smtp import SMTP"),
        (walls, "spamnb.model.a", "import os.path"),
        (walls, "spamnb.policy.a", "from time import monotonic"),
        (walls, "spamnb.mail.a", "def f():\n    import logging"),
        (side_effects, "spamnb.mail.a", "def f():\n    return open('x')"),
        (silent_modules, "spamnb.mail.a", "x = 1"),
        (empty_names, "spamnb.mail.utils", ""),
        (empty_names, "spamnb.engine.mail_manager", ""),
        (empty_names, "spamnb.mail._common", ""),
    ],
)
def test_a_seeded_fault_is_found(rule, module, text):
    """A package that breaks one rule in one place gives a complaint that names the place."""
    found = rule(GOOD | {module: text})
    assert len(found) == 1
    assert module in found[0]
