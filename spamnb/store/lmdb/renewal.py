"""Open an environment whose contents may be lost: a damaged one is deleted and started anew."""

from __future__ import annotations

import shutil
from pathlib import Path

from spamnb.errors import StoreDamagedError, StoreMissingError, StoreVersionError
from spamnb.store.files import make_folder, refused
from spamnb.store.lmdb.environment import Environment, share
from spamnb.store.lmdb.sharing import EnvironmentConfig


def share_or_renew(folder: Path, names: tuple[str, ...]) -> Environment:
    """Open the environment in a folder; an empty one if there is none, or if it is damaged."""
    make_folder(folder)
    plan = EnvironmentConfig(folder, names)
    try:
        return _share(plan)
    except (StoreDamagedError, StoreVersionError):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise refused(error, folder) from error
        make_folder(folder)
        return _share(plan)


def _share(plan: EnvironmentConfig) -> Environment:
    try:
        return share(plan, create=False)
    except StoreMissingError:
        return share(plan, create=True)
