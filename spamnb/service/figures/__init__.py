"""Numbers of the history for pages: judged mail, charts of verdicts, what-if."""
