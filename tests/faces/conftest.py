"""What the tests of the faces share."""

import asyncio

import pytest
from smtp_rig import loops


@pytest.fixture(params=loops(), ids=lambda kind: kind[0])
def on_loop(request):
    """Run a coroutine on an event loop of each kind."""

    def run(main):
        with asyncio.Runner(loop_factory=request.param[1]) as runner:
            return runner.run(main)

    return run
