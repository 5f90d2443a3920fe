"""Questions between hosts, through each keeper of a fleet's log."""

import threading
from concurrent.futures import ThreadPoolExecutor

from support.waiting import LIMIT_S

from spamnb.fleet.log import Asked


def answering(log, host, count=1):
    """Answer some questions to a host, in the way that names both."""
    for _ in range(count):
        while (asked := log.next_question(host, LIMIT_S)) is None:
            pass
        log.answer(host, Asked(asked.ident, host.encode() + b" " + asked.body))


def test_hosts_answer_what_they_are_asked(make_log):
    """A question reaches each of the hosts that it names, with any bytes, and no other host."""
    log, body = make_log(), bytes(range(256))
    hosts = ["a", "b"]
    threads = [threading.Thread(target=answering, args=(log, host)) for host in hosts]
    for thread in threads:
        thread.start()
    found = log.ask(hosts, Asked("1", body), LIMIT_S)
    for thread in threads:
        thread.join()
    assert found == {host: host.encode() + b" " + body for host in hosts}
    assert all(log.next_question(host, 0.001) is None for host in [*hosts, "c"])
    log.close()


def test_the_answers_of_living_hosts_are_returned_without_the_others(make_log):
    """A host that does not answer costs the wait, and the answers of the others are there."""
    log = make_log()
    thread = threading.Thread(target=answering, args=(log, "a"))
    thread.start()
    while (found := log.ask(["a", "dead"], Asked("1", b"?"), 0.2)) == {}:
        # The machine is slow: the host gets the question, and answers too late.
        thread.join()
        thread = threading.Thread(target=answering, args=(log, "a"))
        thread.start()
    thread.join()
    assert found == {"a": b"a ?"}
    log.close()


def test_a_late_answer_is_for_no_other_question(make_log):
    """An answer belongs to its question; when that has ended, it is dropped."""
    log = make_log()
    assert log.ask(["a"], Asked("1", b"first"), 0.001) == {}
    assert log.next_question("a", LIMIT_S) == Asked("1", b"first")
    log.answer("a", Asked("1", b"late"))
    assert log.ask(["a"], Asked("2", b"second"), 0.001) == {}
    log.close()


def test_many_hosts_ask_at_once(make_log):
    """Each of many questions gets its own answer."""
    log = make_log()
    thread = threading.Thread(target=answering, args=(log, "a", 30))
    thread.start()

    def ask(number):
        return log.ask(["a"], Asked(f"{number}", f"{number}".encode()), LIMIT_S)

    with ThreadPoolExecutor(5) as threads:
        found = list(threads.map(ask, range(30)))
    thread.join()
    assert found == [{"a": f"a {number}".encode()} for number in range(30)]
    log.close()
