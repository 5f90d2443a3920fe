"""The model on disk: rows of counts, words, labels and the journal, in one LMDB environment.

`contract` has the values and the protocols, `model_store` the implementation in LMDB, `memory` one
in memory for experiments. Rows are first appended to a log and later written to segments (`rows`),
because a training changes thousands of rows that lie on as many pages. `codec` and `vocabulary`
encode; `journal` appends events and applies them; `maintenance` checks, compacts, backs up and
rebuilds. `files` writes every other file of a home durably.

One process writes, all others read snapshots. What a transaction acknowledged is on disk. No other
package imports LMDB.
"""
