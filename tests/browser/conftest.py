"""One browser for all tests of the pages in a process."""

import pytest
from support.browser import chromium


@pytest.fixture(scope="session")
def browser():
    with chromium() as found:
        yield found
