"""Rules of the source: layers, imports, sizes, names.

Each rule is a function from sources (name of module -> text) to complaints, so that every rule is
also tried on a made-up source that breaks it.
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
FLOORS = (
    "errors",
    "core",
    "bayes",
    "store",
    "service",
    "lab",
    "endpoints",
    "settings",
    "daemon",
    "cli",
    "__main__",
)
PUBLIC = {"spamnb", "spamnb.bayes"}
"""What users import; no module of the serving code imports it."""
IMPURE = {"asyncio", "logging", "os", "pathlib", "random", "socket", "subprocess", "threading"}
IMPURE |= {"tempfile", "time"}
EMPTY_NAMES = {"base", "common", "helper", "helpers", "manager", "util", "utils"}
MOST_LINES = 1000
MOST_FUNCTION_LINES = 49
MOST_FILES = 30


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


def floor(name):
    """Return the number of a module's layer; the package itself is above all."""
    if name == "spamnb":
        return len(FLOORS)
    parts = name.split(".")
    return FLOORS.index(parts[1]) if parts[1] in FLOORS else None


def climbing(sources):
    """Complain of modules on no floor and of imports that go up."""
    complaints = [f"{name} is on no floor" for name in sources if floor(name) is None]
    for name, line, target in own_imports(sources):
        here, there = floor(name), floor(target)
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


def endpoints_that_meet(sources):
    """Complain of an endpoint that imports another."""
    complaints = []
    for name, line, target in own_imports(sources):
        here, there = name.split("."), target.split(".")
        both = here[1:2] == there[1:2] == ["endpoints"] and len(here) > 2 and len(there) > 2
        if both and there[2] not in (here[2], "net"):
            complaints.append(f"{name}:{line} imports another endpoint, {target}")
    return complaints


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
    places = {"lmdb": "spamnb.store", "click": "spamnb.cli", "aiosmtpd": "spamnb.endpoints.smtp"}
    places["matplotlib"] = "spamnb.lab.plots"
    places |= dict.fromkeys(("starlette", "uvicorn", "jinja2", "nh3"), "spamnb.endpoints.console")
    places |= dict.fromkeys(("valkey", "psycopg"), "spamnb.endpoints.fleet")
    places |= {"cryptography": "spamnb.store.fleet.seal"}
    complaints, knowing = [], set()
    for name, text in sources.items():
        for line, target in imports(name, text, sources):
            package = target.split(".")[0]
            place = places.get(package)
            if place and not f"{name}.".startswith(place + "."):
                complaints.append(f"{name}:{line} imports {package}, which belongs to {place}")
            elif package == "lmdb":
                knowing.add(name)
            if name.split(".")[1:2] == ["core"] and package in IMPURE:
                complaints.append(f"{name}:{line} imports {package} in the pure core")
    if len(knowing) > 1:
        complaints.append(f"more than one module imports lmdb: {', '.join(sorted(knowing))}")
    return complaints


def side_effects(sources):
    """Complain of calls in core that reach outside."""
    return [
        f"{name}:{node.lineno} calls {node.func.id} in the pure core"
        for name, text in sources.items()
        if name.split(".")[1:2] == ["core"]
        for node in nodes(text)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"open", "print", "input", "exec", "eval"}
    ]


def long_files(sources):
    """Complain of files with too many lines."""
    lengths = {name: len(text.splitlines()) for name, text in sources.items()}
    return [f"{name} has {count} lines" for name, count in lengths.items() if count > MOST_LINES]


def long_functions(sources):
    """Complain of functions with too many lines, their docstrings not counted."""
    complaints = []
    for name, text in sources.items():
        for node in nodes(text):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= node.body[0].end_lineno - node.body[0].lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    complaints.append(f"{name}:{node.lineno} {node.name} has {lines} lines")
    return complaints


def full_folders(sources):
    """Complain of folders with too many modules; each command of the CLI has a file."""
    folders = Counter(name.rpartition(".")[0] for name in sources)
    packages = {name for name in sources if any(o.startswith(name + ".") for o in sources)}
    for package in packages:
        folders[package.rpartition(".")[0]] -= 1
    return [
        f"{folder} has {count} modules"
        for folder, count in folders.items()
        if count > MOST_FILES and folder != "spamnb.cli"
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


def shared_class_names(sources):
    """Complain of a class name that two modules define: one name is one idea."""
    places = {}
    for name, text in sources.items():
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), set()).add(name)
    return [
        f"{name} is a class of {' and '.join(sorted(modules))}"
        for name, modules in places.items()
        if len(modules) > 1
    ]


PACKAGE_RULES = [
    climbing,
    public_imports,
    endpoints_that_meet,
    cycles,
    walls,
    side_effects,
    long_files,
    long_functions,
    full_folders,
    silent_modules,
    empty_names,
    shared_class_names,
]


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule):
    """No module of spamnb gives cause for complaint."""
    sources = package_sources()
    assert "spamnb.core.model.events" in sources
    assert rule(sources) == []


@pytest.mark.parametrize("rule", [long_files, long_functions, silent_modules])
def test_tests_and_scripts_keep_the_rule(rule):
    """What is not shipped is read as often, so it is held to the same sizes."""
    sources = program_sources()
    assert "scripts/make-sample" in sources
    assert "tests/test_architecture.py" in sources
    assert rule(sources) == []


GOOD = {
    "spamnb": '"""D."""\nfrom spamnb.service.filter import Filter\n',
    "spamnb.errors": '"""D."""\nclass Twice(Exception):\n    """D."""\n',
    "spamnb.core": "",
    "spamnb.core.event": '"""D."""\nfrom spamnb import errors\nimport numpy\n',
    "spamnb.core.model": '"""D."""\nfrom . import event\nfrom .event import Event\n',
    "spamnb.store": "",
    "spamnb.store.disk": '"""D."""\nimport lmdb\nfrom spamnb.core.event import Event\n',
    "spamnb.service.filter": '"""D."""\nfrom ..store import disk\nimport time\n',
    "spamnb.endpoints.http.server": '"""D."""\nfrom spamnb.service.filter import Filter\n',
    "spamnb.endpoints.smtp": "",
    "spamnb.endpoints.smtp.post": '"""D."""\nimport aiosmtpd.controller\nfrom . import replies\n',
    "spamnb.endpoints.smtp.replies": '"""D."""\n',
    "spamnb.cli.main": '"""D."""\nimport click\nfrom spamnb.daemon import run\n',
    "spamnb.daemon": '"""D."""\nfrom spamnb.endpoints.http import server\n',
    "spamnb.__main__": '"""D."""\nfrom spamnb.cli.main import run\n',
}
LONG = "def f():\n" + "    x = 1\n" * 49
TALKATIVE = 'def f():\n    """' + "words\n" * 80 + '    """\n' + "    x = 1\n" * 48


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_a_source_tree_without_faults_passes_each_rule(rule):
    """Imports down, within an endpoint, relative ones, and long docstrings are all allowed."""
    assert rule(GOOD | {"spamnb.core.talk": f'"""D."""\n{TALKATIVE}'}) == []


@pytest.mark.parametrize(
    ("rule", "module", "text"),
    [
        (climbing, "spamnb.core.a", "from spamnb.store import disk"),
        (climbing, "spamnb.core.a", "def f():\n    import spamnb.service.filter"),
        (climbing, "spamnb.errors", "from spamnb.core import event"),
        (climbing, "spamnb.store.a", "from ..service import filter"),
        (climbing, "spamnb.service.a", "from spamnb.endpoints.smtp import post"),
        (climbing, "spamnb.settings", "import spamnb.daemon"),
        (climbing, "spamnb.daemon", "if TYPE_CHECKING:\n    from spamnb.cli.main import run"),
        (climbing, "spamnb.attic.a", ""),
        (public_imports, "spamnb.service.a", "from spamnb import Filter"),
        (public_imports, "spamnb.cli.a", "import spamnb"),
        (public_imports, "spamnb.core.a", "from spamnb.bayes import GaussianNB"),
        (public_imports, "spamnb.cli.a", "from .. import __version__"),
        (
            endpoints_that_meet,
            "spamnb.endpoints.http.a",
            "from spamnb.endpoints.smtp.replies import OK",
        ),
        (endpoints_that_meet, "spamnb.endpoints.http.a", "from ..smtp import replies"),
        (cycles, "spamnb.core.event", "from spamnb.core import model"),
        (cycles, "spamnb.errors", "def f():\n    import spamnb.core.model"),
        (walls, "spamnb.service.a", "import lmdb"),
        (walls, "spamnb.store.a", "from lmdb import Environment"),
        (walls, "spamnb.endpoints.http.a", "import click"),
        (walls, "spamnb.service.a", "def f():\n    from matplotlib.figure import Figure"),
        (walls, "spamnb.endpoints.http.a", "from aiosmtpd.smtp import SMTP"),
        (walls, "spamnb.core.a", "import os.path"),
        (walls, "spamnb.core.a", "from time import monotonic"),
        (walls, "spamnb.core.model.likelihood.a", "def f():\n    import logging"),
        (side_effects, "spamnb.core.a", "def f():\n    return open('x')"),
        (long_files, "spamnb.core.a", "x = 1\n" * 1001),
        (long_functions, "spamnb.core.a", LONG),
        (long_functions, "spamnb.core.a", "class A:\n    async " + LONG.replace("\n", "\n    ")),
        (silent_modules, "spamnb.core.a", "x = 1"),
        (shared_class_names, "spamnb.core.a", "class A:\n    pass\nclass _Twice:\n    pass"),
        (empty_names, "spamnb.core.utils", ""),
        (empty_names, "spamnb.service.mail_manager", ""),
        (empty_names, "spamnb.core._common", ""),
    ],
)
def test_a_seeded_fault_is_found(rule, module, text):
    """A package that breaks one rule in one place gives a complaint that names the place."""
    found = rule(GOOD | {module: text})
    assert len(found) == 1
    assert module in found[0]
