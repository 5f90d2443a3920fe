"""Counts, journal and history on disk; the only floor that knows LMDB."""
