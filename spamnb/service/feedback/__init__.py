"""Labels from people: rights, quotas, review queue, spool, reports."""
