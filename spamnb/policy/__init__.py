"""From a verdict to what happens to the message.

`actions` maps a decision to an action, and the reason of a missing decision to a fallback; it has
the names and costs of recipients. `senders` and `rulings` have the precedence of lists of senders,
and what a sender's listing needs as proof. `headers` makes the fields that are added to a
message, removes copies that a sender forged, and knows the test message of `spamnb doctor`.

Pure: the same verdict, lists and settings always give the same action. No protocol is known here,
so that the relay, the milter, the scanner and the delivery agent act alike.
"""
