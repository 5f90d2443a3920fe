"""Recent verdicts."""
