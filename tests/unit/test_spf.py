"""SPF: the published suite for RFC 7208, and records that an attacker would write."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.zones import Zone, run

from spamnb.auth import spf

SUITE = Path(__file__).parents[1] / "suites" / "rfc7208-tests.yml"
GROUPS = list(yaml.safe_load_all(SUITE.read_text("utf-8")))
CASES = [(group, name) for group in GROUPS for name in group["tests"]]


def zone_of(group):
    """The zone of a group of the suite: CNAME is followed, and SPF stands for TXT."""
    records, gone, links = {}, set(), {}
    for owner, entries in group["zonedata"].items():
        name = owner.lower().rstrip(".")
        has_text = any("TXT" in one for one in entries if isinstance(one, dict))
        for one in entries:
            if one == "TIMEOUT":
                gone.add(name)
                continue
            ((kind, value),) = one.items()
            if kind == "SPF":
                kind = "" if has_text else "TXT"
            if value == "TIMEOUT":
                gone.add(name)
            elif kind == "CNAME":
                links[name] = value.lower().rstrip(".")
            elif kind and value != "NONE":
                records.setdefault((name, kind), []).append(_text(kind, value))
    for name, target in links.items():
        records |= {(name, kind): one for (owner, kind), one in records.items() if owner == target}
    gone -= {name for name, _ in records}
    return Zone(records, gone)


def _text(kind, value):
    if kind == "TXT":
        return "".join(value) if isinstance(value, list) else value
    return f"{value[0]} {value[1]}" if kind == "MX" else value


@pytest.mark.parametrize(("group", "name"), CASES, ids=[name for _, name in CASES])
def test_published_suite(group, name):
    """Each of the 203 cases has the result that the suite names."""
    case = group["tests"][name]
    wanted = case["result"] if isinstance(case["result"], list) else [case["result"]]
    found = spf.check(case["host"], case["mailfrom"], case["helo"], zone_of(group))
    assert run(found)[0] in wanted


def result(record, client="192.0.2.1", sender="a@example.com", **more):
    zone = Zone({("example.com", "TXT"): [record]} | more.get("zone", {}))
    return run(spf.check(client, sender, "helo.example", zone))[0], zone.asked


HOSTILE = {
    "an include of itself": "v=spf1 include:example.com -all",
    "eleven terms": "v=spf1 " + " ".join(f"a:h{n}.example.com" for n in range(11)) + " -all",
    "three void answers": "v=spf1 a:x.example.com a:y.example.com exists:z.example.com ?all",
    "a record of 5 KB": "v=spf1 " + "ip4:192.0.2.1 " * 400 + "-all",
    "a NUL": "v=spf1 a:\0.example.com -all",
    "another charset": "v=spf1 ip4:192.0.2.1 \xe9 -all",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_end_early(name):
    """Each is a permerror, after at most thirteen questions."""
    found, asked = result(HOSTILE[name])
    assert found == "permerror"
    assert len(asked) <= 13


def test_a_macro_cannot_make_a_long_name():
    """A name that is asked has at most 253 characters, whatever macros stand for."""
    record = "v=spf1 exists:" + "%{l}." * 400 + "example.com -all"
    found, asked = result(record, sender="x" * 5_000 + "@example.com")
    assert found == "fail"
    assert max(len(name) for name, _ in asked) <= 253


def test_many_exchanges_are_a_permanent_error():
    """An MX with eleven hosts would be a way to make this site ask a third."""
    zone = {("example.com", "MX"): [f"10 m{n}.example.net" for n in range(11)]}
    assert result("v=spf1 mx -all", zone=zone)[0] == "permerror"


PRINTABLE = st.characters(min_codepoint=32, max_codepoint=126)


@given(st.text(PRINTABLE, max_size=80), st.text(max_size=9))
def test_any_record_has_a_result(text, local):
    """No text raises."""
    results = {*["pass", "fail", "softfail", "neutral", "none", "permerror", "temperror"]}
    assert result(f"v=spf1 {text}", sender=f"{local}@example.com")[0] in results
