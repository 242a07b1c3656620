"""What a PostgreSQL store says to its server: the table, and how rows are read, written and deleted."""

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# `name` is that of a pool; `minute` is `expires` in whole minutes, because an update that changes no column
# of an index is cheap, if the page has room for it.
TABLE = """
CREATE TABLE IF NOT EXISTS headgate_state (
    id bytea PRIMARY KEY, name bytea, mark text NOT NULL, text text NOT NULL,
    expires bigint NOT NULL, minute bigint NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE headgate_state ALTER COLUMN text SET STORAGE MAIN;
CREATE INDEX IF NOT EXISTS headgate_state_by_minute ON headgate_state (minute);
"""

# Three statements: the last one sees all that was written before the locks were had.
BEGINNING = f"""
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT set_config('lock_timeout', %s::text, true),
    set_config('idle_in_transaction_session_timeout', %s::text, true), {{locks}};
SELECT {NOW}, id, name, mark, text, expires FROM (SELECT) AS one LEFT JOIN headgate_state ON id = ANY(%s)
"""  # noqa: S608 - a constant
WRITING = """
INSERT INTO headgate_state (id, name, mark, text, expires, minute) VALUES {values}
ON CONFLICT (id) DO UPDATE SET
    mark = excluded.mark, text = excluded.text, expires = excluded.expires, minute = excluded.minute
"""
SWEEPING = """
DELETE FROM headgate_state WHERE id IN
    (SELECT id FROM headgate_state WHERE minute <= %s LIMIT %s FOR UPDATE SKIP LOCKED)
"""
