"""The event models of naive Bayes, and the arithmetic that all classifiers share.

Pure functions on arrays. Must not know messages, words, stores or settings: they see counts,
numbers and values. `multinomial` and `bernoulli` are the filter's own kinds on gathered counts;
`spamnb.bayes` holds classifiers for other tables. Everything is made of sums, so learning and
forgetting in any order give the same result.
"""
