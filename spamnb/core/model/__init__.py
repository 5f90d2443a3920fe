"""From feature ids and counts to a verdict, and the update that a label causes."""
