"""The daemon: supervisor, worker, scan, learner and delivery processes."""
