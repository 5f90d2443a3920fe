"""The digest: a mail with the messages that wait in quarantine, and its signed links."""
