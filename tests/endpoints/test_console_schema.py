"""The API against its own OpenAPI document, with requests that schemathesis makes."""

import pytest
from support.console import Api, console, token, trained_home

from spamnb.console.table import OPERATIONS
from spamnb.operations.logins import SCOPES

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis.strategies import one_of  # noqa: E402
from requests import Session  # noqa: E402
from requests.adapters import HTTPAdapter  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

ENDING = [one for one in OPERATIONS if one.name != "stream"]
CHECKS = (
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)
AWAY = {502, 503}
"""the next hop of the daemon in these tests"""


class FromAddress(HTTPAdapter):
    """Connects from an address of the loopback network: rates are limited by address."""

    def __init__(self, address):
        self._source = address
        super().__init__()

    def init_poolmanager(self, *args, **more):
        super().init_poolmanager(*args, source_address=(self._source, 0), **more)


class Rig:
    """A daemon, its document, and more tokens than rates could stop."""

    def __init__(self, folder, address):
        self.url = f"http://{address}"
        home = folder / "home"
        self.tokens = [token(home, f"all {number}", *SCOPES) for number in range(8)]
        document = Api(address, self.tokens[0]).get("/openapi.json").body
        schema = schemathesis.openapi.from_dict(document)
        found = (one.ok() for one in schema.get_all_operations())
        self.operations = {one.definition.raw["operationId"]: one for one in found}
        self.number = 0

    def send(self, case):
        """Send a request; each has another address and another token."""
        self.number += 1
        with Session() as session:
            number = self.number
            session.mount("http://", FromAddress(f"127.4.{number // 250 % 250}.{number % 250 + 1}"))
            headers = {"Authorization": f"Bearer {self.tokens[number % len(self.tokens)]}"}
            return case.call(base_url=self.url, session=session, headers=headers)


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    trained_home(folder)
    with console(folder) as (daemon, address):
        yield Rig(folder, address)
        assert daemon.logged("fault") == []


def attack(rig, operation, most):
    """Send so many requests to an operation, valid ones and others."""
    described = rig.operations[operation.name]

    @settings(max_examples=most, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # fmt: skip
    @given(case=one_of(*(described.as_strategy(generation_mode=mode) for mode in GenerationMode)))
    def check(case):
        reply = rig.send(case)
        assert reply.status_code < 500 or reply.status_code in AWAY, reply.text
        case.validate_response(reply, checks=[one for one in CHECKS if reply.status_code < 500])

    check()


@pytest.mark.parametrize("operation", ENDING, ids=lambda one: one.name)
def test_replies_are_as_documented(rig, operation):
    """Whatever is sent, the reply is one of the document, and no fault is logged."""
    attack(rig, operation, 6)


@pytest.mark.full
@pytest.mark.parametrize("operation", ENDING, ids=lambda one: one.name)
def test_many_replies_are_as_documented(rig, operation):
    """The same with 300 requests to each operation."""
    attack(rig, operation, 300)
