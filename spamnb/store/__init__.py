"""Counts, journal and history on disk. No other package imports LMDB."""
