"""From a parsed message to feature ids."""
