"""Evaluation, tuning and reports. The daemon never imports this package.

`runs` has the protocols of an evaluation, `evaluate` its figures, `labels` those of several labels,
`decisions` those of users who answer some of the mistakes, `persons` those of users who want
different mail. `statistics` has metrics with their intervals, `report` draws them. `side_by_side`
compares this filter with another one on the same mail.
"""
