"""The family of naive Bayes: event models, densities, one dependence more, networks, decisions.

Pure functions and small classifiers on arrays. Must not know messages, words, stores or settings:
they see counts, numbers and values. `multinomial` and `bernoulli` are the filter's own kinds on
gathered counts; the rest is the door `spamnb.bayes`, for tables of any sort. All of it is made of
sums, so learning and forgetting in any order gives the same answer.
"""
