"""The doctor: checks of the whole path of a message."""
