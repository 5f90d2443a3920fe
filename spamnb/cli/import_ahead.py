"""Import all modules before root changes to a user that cannot read the program.

An example is a program below /root. Commands import most modules only when they need them, which
fails after the change of the user.
"""

from __future__ import annotations

import stat
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages

_PROGRAM = str(Path(__file__).parent.parent)
_PACKAGES = ("encodings", "multiprocessing", "rich")
"""libraries that import their own modules when they are used"""
_MODULES = ("numpy.ma", "lmdb._envid", "lmdb.verify")
"""such modules of libraries that also have slow ones (`lmdb.cffi` compiles C)"""


def import_ahead() -> None:
    """Import everything, unless every user can read the program."""
    if not is_world_readable():
        import_all()


def is_world_readable() -> bool:
    """Whether every user can read the program and its libraries."""
    folders = [Path(path).absolute() for path in (_PROGRAM, *sys.path)]
    found = [path for path in folders if path.is_dir()]
    return all(map(_is_world_readable, {*found, *(path.resolve() for path in found)}))


def _is_world_readable(folder: Path) -> bool:
    modes = [path.stat().st_mode for path in (folder, *folder.parents)]
    return bool(modes[0] & stat.S_IROTH) and all(mode & stat.S_IXOTH for mode in modes)


def import_all() -> None:
    """Import all modules of the program, and the modules that libraries import later."""
    names = [*_MODULES, *(module.name for module in walk_packages([_PROGRAM], "spamnb."))]
    for package in _PACKAGES:
        path = import_module(package).__path__
        names += (f"{package}.{module.name}" for module in iter_modules(path))
    for name in names:
        # Optional libraries may be missing, and modules of other systems cannot be imported here.
        if not name.endswith(".__main__"):
            with suppress(ImportError):
                import_module(name)
