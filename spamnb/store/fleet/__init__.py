"""The log that the hosts of a fleet share: its interface, its entries, and a log in memory."""
