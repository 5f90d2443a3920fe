"""Work on a whole model or a whole installation.

`rewind` rebuilds a model from its journal, `export` writes and reads it as text, `expiry` forgets
old mail, `imports` reads the counts of other filters, `persons` erases a person, `attribution`
finds the trainings that decided a verdict. `doctor` checks the path of a message through the mail
server. `home_files` are small files of a home that several processes read.

Each of them can be killed at any point: the model is either the old one or the new one.
"""
