"""SMTP and LMTP: the transparent relay and the built-in delivery agent.

`relay` has the sockets; `relay_session` passes commands to the next hop and its replies back, with
the two sides in `relay_sides`; `relay_message` collects a message and sends it on with the verdict.
`delivery_session` and `delivery` write Maildirs and take reports. `syntax` is the grammar of both.

The client gets 250 only after the next hop said 250, or after the message is synced to disk. After
an internal error the reply is 451.
"""
