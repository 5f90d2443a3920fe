"""Table of the settings of a fleet. `table` appends it to the others."""

from __future__ import annotations

from spamnb.settings.setting import Setting
from spamnb.settings.types import TEXT, choice, number, whole

FLEET: tuple[Setting, ...] = (
    Setting("fleet.url", TEXT,
        "Server that keeps the log of a fleet: several hosts with one model. "
        "valkeys://USER@HOST:PORT (Valkey or Redis, with TLS), unix://PATH, or "
        "postgresql://USER@HOST/DATABASE. Empty: this host is alone.",
        restart=True),
    Setting("fleet.name", TEXT,
        "Name of the fleet; fleets on the same server need different names.", restart=True),
    Setting("fleet.host", TEXT,
        "Name of this host, different from the names of all other hosts of the fleet. Empty: the "
        "name of the machine.",
        restart=True),
    Setting("fleet.key_file", TEXT,
        "File with the key of the fleet, the same on all hosts. Empty: fleet.key in the home.",
        restart=True),
    Setting("fleet.password_file", TEXT,
        "File with the password of the server; only its owner may have access (mode 0600).",
        restart=True),
    Setting("fleet.ca_file", TEXT,
        "PEM file of the authorities that the server's certificate is checked with, in addition to "
        "those of the system. The certificate must be valid for the host in the url.",
        restart=True),
    Setting("fleet.durable", choice("local", "replica", "trust"),
        "local: refuse a server that answers before an entry is on its disk. replica: also wait "
        "until a replica of the server has the entry, at most half of `fleet.append_s`; if no "
        "replica has the entry by then, the reply to the correction, the status and the log say "
        "so. PostgreSQL itself waits for the replica, so a PostgreSQL server without "
        "synchronous_standby_names is refused. trust: use a server that may lose entries; after a "
        "crash of the server, the hosts may have events that the server's log lacks, and then they "
        "stop learning.",
        restart=True),
    Setting("fleet.seal", choice("chacha20", "hmac"),
        "How entries are protected from the server: chacha20 encrypts them; hmac lets it read "
        "them, and needs no package. The same on all hosts.",
        restart=True),
    Setting("fleet.fold_s", number(0, 60),
        "Minimum time between two folds of new entries. The more entries a fold has, the less CPU "
        "time each entry needs: 1.2 ms with 16 entries, 0.4 ms with 2,048.",
        restart=True),
    Setting("fleet.append_s", number(0.1, 30),
        "How long the server may take to answer. Meanwhile the model is locked for other "
        "corrections, but not for mail.",
        restart=True),
    Setting("fleet.keep_events", whole(1000),
        "How many events the log keeps. A host that is further behind has to rejoin (`spamnb "
        "fleet rejoin`). 200,000 take 700 MB of the server's memory.",
        restart=True),
    Setting("fleet.outbox_bytes", whole(1 << 20),
        "Disk space for the corrections that wait while the log is away. When it is used up, "
        "further corrections are refused. A message takes 4 KB.",
        restart=True),
)  # fmt: skip
