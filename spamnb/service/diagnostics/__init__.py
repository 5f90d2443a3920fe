"""`spamnb doctor`: checks the whole path of a message."""
