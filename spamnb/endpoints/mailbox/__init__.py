"""A person's mailbox as their mail program sees it: find one message, move it, take it away."""
