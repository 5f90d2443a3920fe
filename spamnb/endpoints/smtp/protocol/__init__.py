"""The syntax of SMTP: commands, lines, DATA, replies. No I/O."""
