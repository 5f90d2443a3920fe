"""The exact event models: multinomial and Bernoulli, for any number of labels.

Pure functions on arrays. Must not know messages, words, stores or settings: they see counts and
rows. The models keep nothing; all that they need is in the counts, so learning and unlearning in
any order gives the same answer.
"""
