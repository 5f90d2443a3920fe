"""The stores, and the keepers of a fleet's log, that must keep their contract alike."""

from __future__ import annotations

import secrets
import tempfile

import pytest
from support.memory_store import MemoryStore
from support.postgres_server import PostgresServer, needs_postgres
from support.stores import RECIPE
from support.valkey_server import ValkeyServer, needs_valkey

from spamnb.fleet.log import MemoryLog
from spamnb.store.model_store import open_store


@pytest.fixture(params=["memory", "lmdb", "lmdb-small-map"])
def make_store(request, tmp_path):
    """A function that makes a store; the third kind must grow its map all the time."""
    made = []

    def make(recipe=RECIPE):
        if request.param == "memory":
            return MemoryStore(recipe)
        size = {"lmdb": 1 << 40, "lmdb-small-map": 1 << 20}[request.param]
        folder = tmp_path / f"model{len(made)}"
        made.append(open_store(folder, create=recipe, map_size=size))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store):
    return make_store()


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="v") as folder:
        running = ValkeyServer(folder).start()
        yield running
        running.kill()


@pytest.fixture(scope="session")
def postgres():
    running = PostgresServer()
    try:
        yield running.start()
    finally:
        running.close()


SERVERS = [
    pytest.param("server", marks=needs_valkey, id="valkey"),
    pytest.param("postgres", marks=needs_postgres),
]


@pytest.fixture(scope="session", params=["memory", *SERVERS])
def make_log(request):
    """A function that makes an empty log; logs of a server differ by name."""
    if request.param == "memory":
        return MemoryLog
    running = request.getfixturevalue(request.param)
    return lambda **options: running.log(name=secrets.token_hex(8), **options)
