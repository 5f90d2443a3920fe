"""The daemon: its processes, and what each of them does.

`start` binds the sockets, drops privileges and plans the processes; `supervisor` starts them, kills
and replaces one that gives no heartbeat, and passes new settings on. `worker` scans, `learner` is
the only process that writes the model, `delivery`, `imap` and `console` are optional. `shared` is
the memory that they share: heartbeats, counters, and the message that each of them scans.
`configure` makes the parts from the settings, `config_checks` compares the settings with the
machine.

Mail is read in processes without rights that can be killed; the learner survives them.
"""
