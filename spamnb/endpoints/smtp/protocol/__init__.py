"""SMTP syntax: commands, lines, DATA, parameters. No I/O."""
