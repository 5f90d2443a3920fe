"""All attacks in parallel beside honest clients; then kills of the daemon's processes."""

import pytest
from support.storm import Storm

MOST_P99_S = 1.0
MOST_HARM = 0.10
"""Share of other users' mail that the hostile corrections of two users may cost, in a model of 200
messages: 6 % of the ham and 2 % of the spam with 649 corrections in ten minutes. Compared with the
same history without these users, because the honest corrections change more verdicts."""


def check(results):
    """Check that mail of users arrives, their labels count once, and hostile ones are bounded."""
    print(f"delivered {dict(results.delivered)}, deferrals {dict(results.deferrals)}")
    print(f"unscanned {dict(results.unscanned)}, kills {dict(results.kills)}, harm {results.harm}")
    for kind in results.latency:
        print(kind, [round(results.quantile(kind, share), 3) for share in (0.5, 0.9, 0.99, 1.0)])
    print(f"honest corrections {results.labels}, hostile {dict(results.hostile)}")
    assert results.lost == []
    assert results.changed == []
    assert results.refused == []
    assert results.given_up == []
    assert results.label_faults == []
    assert results.labels
    reasons = {verdict.partition("reason=")[2] for _, verdict in results.unscanned}
    assert not reasons & {"busy", "large"}
    for taught, spared in zip(results.harm["with"], results.harm["without"], strict=True):
        assert taught - spared <= MOST_HARM
    assert results.code == 0


def test_a_short_storm(tmp_path):
    """Four seconds of all attacks, then six kills."""
    check(Storm(tmp_path).run(4, 6))


@pytest.mark.timed
def test_ten_minutes(tmp_path):
    """Ten minutes of all attacks with a p99 of small mail below a second, then 600 kills."""
    results = Storm(tmp_path).run(600, 600)
    check(results)
    for kind in ("trusted", "small"):
        assert results.quantile(kind, 0.99) <= MOST_P99_S
