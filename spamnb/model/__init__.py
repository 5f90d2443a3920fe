"""From a message to a score, and from a label to a step of the model.

`tokens` and `features` turn a message into 64-bit ids. `scoring` turns ids and counts into scores,
`verdict` turns scores into a probability, a decision and clues. `events` are the values of the
journal: what each training added, as integers, so that it can be subtracted again. `correction`
says what a label still lacks, `training_rows` how rows change while events are applied, `persons`
what one person's labels add. `costs` has what settings and the model share, and imports no
arithmetic.

Pure: arithmetic on arrays. The engine reads and writes the rows.
"""
