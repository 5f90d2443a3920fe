"""From the bytes of a message to its headers, text and parts.

Every client writes what it likes, so the parser never fails on mail: each input has a limit
(`limits`), and what exceeds it becomes a mark that the model can learn. `message` is the value that
the other packages read; `headers`, `mime`, `content`, `charset` and `html` make it. `envelope` has
senders, recipients and the hosts of the site; `results` and `site_results` say which results of
authentication the site's own verifier wrote; `other_filters` reads the marks of other filters.

Pure: no files, clocks, threads or randomness. The same bytes always give the same value, so a
message has the same features on every way into the filter.
"""
