"""Tables and statements of `PostgresLog`.

Each statement is atomic. A run of the server is identified by its start time, which changes with
each restart; the log counts as settled if it was settled in the current run. All times are from the
clock of the server.
"""

from __future__ import annotations

CHECK = """
SELECT current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names')
"""

IS_THERE = "SELECT to_regclass('spamnb_answer') IS NOT NULL"

TABLES = """
SELECT pg_advisory_xact_lock(7233164);
CREATE TABLE IF NOT EXISTS spamnb_log (
    fleet text PRIMARY KEY, epoch text NOT NULL, seq bigint NOT NULL, chain text NOT NULL,
    run timestamptz NOT NULL, level integer NOT NULL);
CREATE TABLE IF NOT EXISTS spamnb_entry (
    fleet text, last bigint, host text NOT NULL, upto bigint NOT NULL, first bigint NOT NULL,
    chain text NOT NULL, body bytea NOT NULL, PRIMARY KEY (fleet, last));
CREATE TABLE IF NOT EXISTS spamnb_recorded (
    fleet text, host text, events bigint NOT NULL, PRIMARY KEY (fleet, host));
CREATE TABLE IF NOT EXISTS spamnb_lease (
    fleet text, what text, host text NOT NULL, ends timestamptz NOT NULL,
    PRIMARY KEY (fleet, what));
CREATE TABLE IF NOT EXISTS spamnb_beat (
    fleet text, host text, made timestamptz NOT NULL, ident text NOT NULL, seq bigint NOT NULL,
    chain text NOT NULL, fingerprint text NOT NULL, level integer NOT NULL, version text NOT NULL,
    clock_us bigint NOT NULL, waiting bigint NOT NULL, epoch text NOT NULL,
    PRIMARY KEY (fleet, host));
CREATE TABLE IF NOT EXISTS spamnb_report (
    fleet text, host text, run timestamptz NOT NULL, seq bigint NOT NULL,
    since timestamptz NOT NULL, made timestamptz NOT NULL, PRIMARY KEY (fleet, host));
CREATE TABLE IF NOT EXISTS spamnb_skipped (
    fleet text, last bigint, permit bytea NOT NULL, PRIMARY KEY (fleet, last));
CREATE TABLE IF NOT EXISTS spamnb_snapshot (
    fleet text PRIMARY KEY, ident text NOT NULL, seq bigint NOT NULL, parts integer NOT NULL,
    made timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS spamnb_part (
    fleet text, ident text, number integer, made timestamptz NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, ident, number));
CREATE UNLOGGED TABLE IF NOT EXISTS spamnb_question (
    fleet text, host text, ident text, made timestamptz NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, host, ident));
CREATE UNLOGGED TABLE IF NOT EXISTS spamnb_answer (
    fleet text, ident text, host text, made timestamptz NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (fleet, ident, host))
"""

HEAD = """
SELECT epoch, seq, chain, run = pg_postmaster_start_time(), level
FROM spamnb_log WHERE fleet = %(fleet)s
"""

MAKE = """
INSERT INTO spamnb_log
SELECT %(fleet)s, %(epoch)s, %(seq)s, %(chain)s,
       CASE WHEN %(settled)s THEN pg_postmaster_start_time() ELSE '-infinity' END, %(level)s
ON CONFLICT DO NOTHING
"""

# The first statement waits for an append in progress; the others then see what it has added.
CLEAR = (
    "DELETE FROM spamnb_log WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_entry WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_recorded WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_report WHERE fleet = %(fleet)s",
    "DELETE FROM spamnb_lease WHERE fleet = %(fleet)s AND what = ''",
    "UPDATE spamnb_snapshot SET seq = 0 WHERE fleet = %(fleet)s",
)

RENEW = """
UPDATE spamnb_log SET epoch = %(renewed)s
WHERE fleet = %(fleet)s AND epoch = %(epoch)s AND seq = %(seq)s
"""

LEVEL = "UPDATE spamnb_log SET level = %(level)s WHERE fleet = %(fleet)s"

STATE = """
SELECT epoch, seq, chain, run = pg_postmaster_start_time(),
       coalesce((SELECT host FROM spamnb_lease WHERE fleet = log.fleet AND what = ''
                 AND ends > clock_timestamp()), ''),
       coalesce((SELECT events FROM spamnb_recorded WHERE fleet = log.fleet AND host = %(host)s), 0)
FROM spamnb_log log WHERE fleet = %(fleet)s
"""

# Compare and append. An update waits for another update of the same row, and then compares.
ADD = """
WITH moved AS (
    UPDATE spamnb_log SET seq = %(last)s, chain = %(chain)s
    WHERE fleet = %(fleet)s AND epoch = %(epoch)s AND seq = %(base)s AND chain = %(before)s
          AND (run = pg_postmaster_start_time() OR NOT %(settled)s)
    RETURNING fleet
), added AS (
    INSERT INTO spamnb_entry (fleet, last, host, upto, first, chain, body)
    SELECT fleet, %(last)s, %(host)s, %(upto)s, %(base)s + 1, %(chain)s, %(body)s FROM moved
), recorded AS (
    INSERT INTO spamnb_recorded AS old SELECT fleet, %(host)s, %(upto)s FROM moved
    ON CONFLICT (fleet, host) DO UPDATE SET events = greatest(old.events, excluded.events)
), dropped AS (
    DELETE FROM spamnb_entry
    WHERE fleet = %(fleet)s AND last <= %(oldest)s AND EXISTS (SELECT FROM moved)
)
SELECT pg_notify('spamnb_log', '') FROM moved
"""

REPORT = """
INSERT INTO spamnb_report AS old
VALUES (%(fleet)s, %(host)s, pg_postmaster_start_time(), %(seq)s, clock_timestamp(),
        clock_timestamp())
ON CONFLICT (fleet, host) DO UPDATE SET
    run = excluded.run, seq = excluded.seq, made = excluded.made,
    since = CASE WHEN old.run = excluded.run THEN old.since ELSE excluded.since END
"""

SETTLE = """
WITH report AS (
    SELECT *, made > clock_timestamp() - make_interval(secs => %(fresh_s)s) AS is_fresh
    FROM spamnb_report WHERE fleet = %(fleet)s AND run = pg_postmaster_start_time()
), missing AS (
    SELECT FROM spamnb_beat WHERE fleet = %(fleet)s
        AND made >= clock_timestamp() - make_interval(secs => %(day_s)s)
        AND host NOT IN (SELECT host FROM report WHERE is_fresh)
)
UPDATE spamnb_log SET run = pg_postmaster_start_time()
WHERE fleet = %(fleet)s AND seq >= (SELECT max(seq) FROM report WHERE is_fresh)
    AND (NOT EXISTS (SELECT FROM missing)
         OR (SELECT min(since) FROM report)
            <= clock_timestamp() - make_interval(secs => %(wait_s)s))
"""

BEAT = """
INSERT INTO spamnb_beat AS old
VALUES (%(fleet)s, %(host)s, clock_timestamp(), %(ident)s, %(seq)s, %(chain)s, %(fingerprint)s,
        %(level)s, %(version)s, %(clock_us)s, %(waiting)s, %(epoch)s)
ON CONFLICT (fleet, host) DO UPDATE SET made = excluded.made, ident = excluded.ident,
    seq = excluded.seq, chain = excluded.chain, fingerprint = excluded.fingerprint,
    level = excluded.level, version = excluded.version, clock_us = excluded.clock_us,
    waiting = excluded.waiting, epoch = excluded.epoch
WHERE old.ident = excluded.ident
    OR old.made <= clock_timestamp() - make_interval(secs => %(fresh_s)s)
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""

TRIM = """
WITH dropped AS (
    DELETE FROM spamnb_part WHERE fleet = %(fleet)s
        AND made < clock_timestamp() - make_interval(secs => %(keep_s)s)
)
DELETE FROM spamnb_entry WHERE fleet = %(fleet)s
    AND last <= (SELECT seq FROM spamnb_snapshot WHERE fleet = %(fleet)s)
    AND last <= (SELECT min(seq) FROM spamnb_beat WHERE fleet = %(fleet)s
                 AND made >= clock_timestamp() - make_interval(secs => %(day_s)s))
"""

BEATS = """
SELECT host, ident, seq, chain, fingerprint, level, version, clock_us, waiting, epoch,
       extract(epoch FROM clock_timestamp() - made)::float8
FROM spamnb_beat WHERE fleet = %(fleet)s
"""

SKIP = """
INSERT INTO spamnb_skipped VALUES (%(fleet)s, %(last)s, %(permit)s)
ON CONFLICT (fleet, last) DO UPDATE SET permit = excluded.permit
"""
SKIPPED = "SELECT permit FROM spamnb_skipped WHERE fleet = %(fleet)s AND last = %(last)s"

RECORDED = "SELECT events FROM spamnb_recorded WHERE fleet = %(fleet)s AND host = %(host)s"

PAGE = """
SELECT host, upto, first, last, chain, body FROM spamnb_entry
WHERE fleet = %(fleet)s AND last > %(after)s ORDER BY last LIMIT %(count)s
"""

# The write lease has an empty name; its holder may renew it.
LEASE = """
INSERT INTO spamnb_lease AS old
VALUES (%(fleet)s, %(what)s, %(host)s, clock_timestamp() + make_interval(secs => %(hold_s)s))
ON CONFLICT (fleet, what) DO UPDATE SET host = excluded.host, ends = excluded.ends
WHERE old.ends <= clock_timestamp() OR (old.what = '' AND old.host = excluded.host)
"""
GIVE_WRITE_LEASE = (
    "DELETE FROM spamnb_lease WHERE fleet = %(fleet)s AND what = '' AND host = %(host)s"
)

PUT_PART = """
INSERT INTO spamnb_part
VALUES (%(fleet)s, %(ident)s, %(number)s, clock_timestamp(), %(body)s)
"""
PUT_SNAPSHOT = (
    """
DELETE FROM spamnb_part part USING spamnb_snapshot old
WHERE part.fleet = %(fleet)s AND old.fleet = part.fleet AND old.ident = part.ident
""",
    """
INSERT INTO spamnb_snapshot
VALUES (%(fleet)s, %(ident)s, %(seq)s, %(parts)s, clock_timestamp())
ON CONFLICT (fleet) DO UPDATE SET ident = excluded.ident, seq = excluded.seq,
    parts = excluded.parts, made = excluded.made
""",
)
SNAPSHOT = """
SELECT ident, parts, extract(epoch FROM clock_timestamp() - made)::float8 FROM spamnb_snapshot
WHERE fleet = %(fleet)s AND made >= clock_timestamp() - make_interval(secs => %(keep_s)s)
"""
PART = """
SELECT body FROM spamnb_part
WHERE fleet = %(fleet)s AND ident = %(ident)s AND number = %(number)s
"""

# A new question deletes old questions and answers.
ASK = (
    """
DELETE FROM spamnb_question WHERE fleet = %(fleet)s
    AND made < clock_timestamp() - make_interval(secs => %(keep_s)s)
""",
    """
DELETE FROM spamnb_answer WHERE fleet = %(fleet)s
    AND made < clock_timestamp() - make_interval(secs => %(keep_s)s)
""",
    """
INSERT INTO spamnb_question
SELECT %(fleet)s, host, %(ident)s, clock_timestamp(), %(body)s FROM unnest(%(hosts)s::text[]) host
""",
    "SELECT pg_notify('spamnb_asked', '')",
)
QUESTION = """
DELETE FROM spamnb_question WHERE fleet = %(fleet)s AND host = %(host)s AND ident = (
    SELECT ident FROM spamnb_question WHERE fleet = %(fleet)s AND host = %(host)s
    ORDER BY made LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING ident, body
"""
ANSWER = (
    """
INSERT INTO spamnb_answer
VALUES (%(fleet)s, %(ident)s, %(host)s, clock_timestamp(), %(body)s) ON CONFLICT DO NOTHING
""",
    "SELECT pg_notify('spamnb_asked', '')",
)
ANSWERS = "SELECT host, body FROM spamnb_answer WHERE fleet = %(fleet)s AND ident = %(ident)s"
