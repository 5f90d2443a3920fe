"""Listening sockets after a change of the settings."""

import socket

import pytest
from support.waiting import LIMIT_S

from spamnb.daemon.start import BindAddress, Sockets
from spamnb.errors import UserError

LOOPBACK = BindAddress("127.0.0.1", 0)


@pytest.fixture
def sockets():
    made = Sockets()
    yield made
    made.close()


def port_of(group):
    return group.sockets[0].getsockname()[1]


def names_of(sockets):
    return {name: [group.bound for group in groups] for name, groups in sockets.groups.items()}


def test_a_change_binds_closes_and_moves(sockets, tmp_path):
    """What is wanted unchanged keeps its sockets; addresses may go to another name."""
    first, second = BindAddress(path=str(tmp_path / "1")), BindAddress(path=str(tmp_path / "2"))
    for name, bind in {"control": LOOPBACK, "a": LOOPBACK, "b": first, "c": second}.items():
        sockets.add(name, bind, 2)
    before = dict(sockets.groups)
    third = BindAddress(path=str(tmp_path / "3"))
    wanted = {"a": LOOPBACK, "b": second, "d": third}
    assert set(sockets.rebind(wanted, 2, ("control",))) == {"b", "d"}
    for name in ("control", "a"):
        assert sockets.groups[name] is before[name]
    assert sockets.groups["b"] is before["c"]
    assert set(sockets.groups) == {"control", "a", "b", "d"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    assert before["b"][0].sockets[0].fileno() == -1
    assert sockets.rebind(wanted, 2, ("control",)) == []


def test_a_change_that_fails_changes_nothing(sockets, tmp_path):
    """If one address cannot be bound, all sockets stay, and none is left over."""
    sockets.add("a", LOOPBACK, 1)
    before = names_of(sockets)
    wanted = {
        "b": BindAddress(path=str(tmp_path / "b")),
        "c": BindAddress(path=str(tmp_path / "none" / "c")),
    }
    with pytest.raises(UserError, match="cannot be bound"):
        sockets.rebind(wanted, 1, ())
    assert names_of(sockets) == before
    assert list(tmp_path.iterdir()) == []
    with socket.create_connection(("127.0.0.1", port_of(sockets.groups["a"][0])), LIMIT_S):
        pass


def test_sockets_of_the_service_manager_stay_with_their_names(sockets):
    """Their address is not that of the settings; without a listener they are closed."""
    with socket.create_server(("127.0.0.1", 0)) as given:
        sockets.adopt("a", [given])
        assert sockets.rebind({"a": BindAddress("127.0.0.1", 25)}, 2, ()) == []
        assert sockets.of("a", 1) == [given]
        assert sockets.rebind({}, 2, ()) == []
        assert given.fileno() == -1
