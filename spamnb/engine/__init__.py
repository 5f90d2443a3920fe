"""Score, learn and undo: the model in use.

`filter` is the interface: it opens a home, scores, and passes trainings on. `scoring` reads a
snapshot and scores a batch, for the site and for persons. `planner` gives each training its number,
its label in force and its budget; `learner` computes its step and commits a group of trainings in
one transaction. `bulk` trains and scores folders on all cores, `mailboxes` reads them. `prior`
gives a new model its first words; `site_scores` sets the threshold by the site's own mail.

One learner writes, so that each training sees all earlier ones and can be taken back exactly.
"""
