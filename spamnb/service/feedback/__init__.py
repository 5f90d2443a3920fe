"""User feedback: permissions, quotas, review queue, spool, report parsing."""
