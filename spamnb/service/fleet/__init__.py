"""One host of a fleet: teach through the log, and follow it."""
