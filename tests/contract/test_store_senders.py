"""Lists of senders in a store, for both implementations."""

import pytest
from support.stores import HAM, learn, mail, picture, sound

from spamnb.errors import StoreDamagedError, StoreVersionError
from spamnb.policy.senders import ListOwner, SenderList
from spamnb.store.maintenance import check
from spamnb.store.person_tables import decode_senders, encode_senders

ANN = ListOwner("person", "ann", 7)
DOMAIN = ListOwner("domain", "example.org", 7)
SITE = ListOwner("site")


def listed(owner, *senders):
    found = SenderList(owner.kind, owner.name)
    for number, sender in enumerate(senders):
        found = found.put(sender, ("wanted", "unwanted")[number % 2], 5 + number)
    return found


def test_lists_are_kept_by_their_owner(store):
    """A person and a domain with one id have two lists; a list without entries is removed."""
    for owner in (ANN, DOMAIN, SITE):
        mine = listed(owner, f"{owner.kind}@a.example", "b.example")
        store.transact(lambda view, owner=owner, mine=mine: view.put_senders(owner.key, mine))
    with store.read() as view:
        found = dict(view.sender_lists())
        assert list(found) == [DOMAIN.key, ANN.key, SITE.key]
        assert (
            view.senders(ANN.key) == found[ANN.key] == listed(ANN, "person@a.example", "b.example")
        )
        assert view.senders(ListOwner("person", "bob", 8).key) is None
    store.transact(lambda view: view.put_senders(ANN.key, listed(ANN)))
    store.transact(lambda view: view.put_senders(SITE.key, None))
    store.transact(lambda view: view.put_senders(SITE.key, None))
    with store.read() as view:
        assert [key for key, _ in view.sender_lists()] == [DOMAIN.key]
    assert sound(store)


def test_a_list_is_no_event(store):
    """Labels and lists do not change each other, and an abandoned change leaves nothing."""
    learn(store, mail(1, 5, 6), HAM)
    with store.read() as view:
        before = picture(view)

    def run(view):
        view.put_senders(ANN.key, listed(ANN, "a@a.example"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(run)
    with store.read() as view:
        assert picture(view) == before
    store.transact(lambda view: view.put_senders(ANN.key, listed(ANN, "a@a.example")))
    with store.read() as view:
        after = picture(view)
    assert after.pop("senders")
    assert not before.pop("senders")
    assert after == before
    assert sound(store)


@pytest.mark.parametrize(
    "lines",
    [b"\nb.example wanted 5\na.example wanted 5", b"\na.example 5", b"\na.example wanted x",
     b"\na.example perhaps 5", b"\n"],
)  # fmt: skip
def test_check_names_a_damaged_list(store, lines):
    """Entries out of order, without a word or a time are found."""
    store.transact(lambda view: view.put_senders(ANN.key, SenderList("person", "ann", lines)))
    with store.read() as view:
        assert check(view) == ["the list of senders of person ann is damaged"]
        if lines.count(b"\n") == 1:
            with pytest.raises(StoreDamagedError):
                view.senders(ANN.key).put("c.example", "wanted", 1)


def test_damaged_bytes_of_a_list_are_an_error():
    """An owner of an unknown kind is damage; an unknown form is of a newer version."""
    data = encode_senders(listed(ANN, "a@a.example", "b.example"))
    assert decode_senders(data) == listed(ANN, "a@a.example", "b.example")
    assert decode_senders(encode_senders(SenderList("person", "müller"))).name == "müller"
    for damaged in (b"\1", b"\1nobody ann\n", data + b"\xff"):
        with pytest.raises(StoreDamagedError):
            decode_senders(damaged)
    for unknown in (b"", b"\2" + data[1:]):
        with pytest.raises(StoreVersionError):
            decode_senders(unknown)


def test_each_change_of_a_store_has_another_number(store):
    """A reader that knows the number sees that nothing has changed since."""
    with store.read() as before:
        first = store.last_change()
        assert before.last_change() == first
        store.transact(lambda view: view.put_senders(ANN.key, listed(ANN, "a@a.example")))
        second = store.last_change()
        assert before.last_change() == first
        with store.read() as after:
            assert after.last_change() == second
    learn(store, mail(1, 5, 6), HAM)
    assert len({first, second, store.last_change()}) == 3
