"""One message in the mail path: lists, verdict, action, quarantine."""
