"""The fair queue: order, shares, and what is remembered."""

import pytest

from spamnb.scan.scanner import MAX_REMEMBERED, FairQueue


def taken(queue, cost=1.0):
    """Take everything, charging each client the cost of its item."""
    found = []
    while queue:
        item = queue.take()
        queue.charge(item[0], cost if isinstance(cost, float) else cost[item[0]])
        found.append(item)
    return found


def filled(text):
    """A queue with one item for each character, which names its client."""
    queue = FairQueue()
    for number, client in enumerate(text):
        queue.put(client, (client, number))
    return queue


def test_clients_take_turns_and_each_keeps_its_order():
    """However many items a client has, the next item of another client waits for one of them."""
    assert taken(filled("aaaabcb")) == [
        ("a", 0), ("b", 4), ("c", 5), ("a", 1), ("b", 6), ("a", 2), ("a", 3),
    ]  # fmt: skip


def test_shares_are_of_cost_not_of_number():
    """A client with items that cost ten times as much gets a tenth of the turns."""
    costs = {"a": 10.0, "b": 1.0}
    order = "".join(client for client, _ in taken(filled("a" * 20 + "b" * 20), costs))
    assert order[:12].count("a") == 2


def test_absence_earns_no_credit():
    """A client that comes later shares from then on, and does not catch up."""
    queue = filled("a" * 10)
    for _ in range(8):
        queue.charge(queue.take()[0], 1.0)
    for number in range(4):
        queue.put("b", ("b", number))
    order = "".join(client for client, _ in taken(queue))
    assert order.index("a") <= 2
    assert order.index("b") <= 1


def test_an_item_can_be_removed_and_put_back():
    """What was removed is not taken; what is put back comes first of its client."""
    queue = filled("aab")
    assert queue.remove("a", ("a", 0))
    assert not queue.remove("a", ("a", 0))
    assert not queue.remove("z", ("z", 0))
    queue.put_back("a", ("a", 9))
    assert len(queue) == 3
    assert taken(queue) == [("a", 9), ("b", 2), ("a", 1)]
    with pytest.raises(IndexError):
        queue.take()


def test_strangers_do_not_fill_the_memory():
    """The cost of clients without items is forgotten, however many clients there were."""
    queue = FairQueue()
    for number in range(10 * MAX_REMEMBERED):
        queue.put(str(number), number)
        queue.charge(str(queue.take()), 1.0)
    assert len(queue._cost) <= MAX_REMEMBERED + 2
