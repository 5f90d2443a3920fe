"""Use cases: score, learn, correct, forget, report."""
