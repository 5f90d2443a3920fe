"""A user's mailbox, for `spamnb doctor`: find one message, move it, delete it."""
