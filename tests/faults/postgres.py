"""A real PostgreSQL server, PgBouncer in front of it, and what can happen to either.

with PostgresServer() as server:    # on loopback, a free port, its data in a directory of its own
    server.url                      # postgresql://headgate@127.0.0.1:port/postgres
    server.kill(); server.start()   # SIGKILL of all its processes, and back with what was on disk
    server.stop(); server.go_on()   # SIGSTOP of all its processes; SIGCONT
    server.forget()                 # all rows are gone
    server.restart_empty()          # SIGKILL, and back with a new database

with server.standby() as standby:   # it has all that the first one has confirmed since, and writes nothing
    standby.promote()               # it writes

The server refuses to run as root: for root it runs as the user postgres.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from faults.rig import free_port
from patience import eventually
from programs import program

BIN = "/usr/lib/postgresql/*/bin/"


def unprivileged():
    """Return the arguments of Popen for a user who is not root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def folder_of_its_own(name, under=None):
    folder = Path(tempfile.mkdtemp(prefix=f"headgate-{name}-", dir=under))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    return folder


class PostgresServer:
    def __init__(self, *options, of=None):
        self._postgres = program("postgres", "postgresql", BIN + "postgres")
        self._of = of
        self.port = free_port()
        self.url = f"postgresql://headgate@127.0.0.1:{self.port}/postgres"
        self.folder = folder_of_its_own("postgres")
        self._options = [f"-c{option}" for option in options]
        self._process = None

    def __enter__(self):
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self):
        where = f"--pgdata={self.folder / 'data'}"
        if self._of is None:
            self._run_to_the_end(
                program("initdb", "postgresql", BIN + "initdb"),
                where,
                *("--username=headgate", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"),
            )
        else:
            self._run_to_the_end(
                program("pg_basebackup", "postgresql", BIN + "pg_basebackup"),
                where,
                *(
                    "--host=127.0.0.1",
                    f"--port={self._of.port}",
                    "--username=headgate",
                    "--write-recovery-conf",
                ),
                *("--checkpoint=fast", "--no-sync"),
            )

    def _run_to_the_end(self, *command):
        subprocess.run(
            command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, timeout=60, **unprivileged()
        )

    def start(self):
        assert self._process is None
        # A killed server may need a moment until its memory is free.
        eventually(self._starts, "the server starts")

    def _starts(self):
        if self._process is None:
            self._process = subprocess.Popen(
                [
                    self._postgres,
                    *("-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1"),
                    *("-k", str(self.folder), "-F", "-c", "logging_collector=off", *self._options),
                ],
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **unprivileged(),
            )
        if self._process.poll() is not None:
            self._process = None
            return False
        with suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=2):
            return True
        return False

    def query(self, statement, *facts):
        """Run a statement and return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, facts)
            return cursor.fetchall() if cursor.description else []

    def forget(self):
        self.query("TRUNCATE headgate_state")

    def restart_empty(self):
        self.kill()
        shutil.rmtree(self.folder / "data")
        self._make()
        self.start()

    @contextmanager
    def standby(self):
        """A server that follows this one, which from now on confirms nothing that the other one has not."""
        with PostgresServer(of=self) as standby:
            streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            eventually(lambda: self.query(streams) == [(1,)], "it follows")
            for setting in ("synchronous_standby_names = '*'", "synchronous_commit = remote_apply"):
                self.query(f"ALTER SYSTEM SET {setting}")
            self.query("SELECT pg_reload_conf()")
            follows = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            eventually(lambda: self.query(follows) == [(1,)], "it is waited for")
            yield standby

    def promote(self):
        self.query("SELECT pg_promote()")

    def _processes(self):
        """Return the ids of all its processes: each client has one."""
        found = [self._process.pid]
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(status.read_text().rpartition(")")[2].split()[1]) == self._process.pid:
                    found.append(int(status.parent.name))
        return found

    def _signal(self, number):
        for process in self._processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self):
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no more
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self):
        self._signal(signal.SIGSTOP)

    def go_on(self):
        self._signal(signal.SIGCONT)


class PgBouncer:
    """PgBouncer in transaction mode: each transaction may be served by another process of the server."""

    def __init__(self, server):
        self._program = program("pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer")
        self._server = server
        self.port = free_port()
        self.url = f"postgresql://headgate@127.0.0.1:{self.port}/postgres"
        self.folder = folder_of_its_own("pgbouncer")
        self._process = None

    def __enter__(self):
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"""[databases]
postgres = host=127.0.0.1 port={self._server.port} dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
"""
        )
        # Any user may connect, as the one that the server lets in.
        text = config.read_text().replace("dbname=postgres\n", "dbname=postgres user=headgate\n")
        config.write_text(text)
        config.chmod(0o644)
        self._process = subprocess.Popen(
            [self._program, "-q", str(config)],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **unprivileged(),
        )
        try:
            eventually(self._is_up, "PgBouncer answers")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_up(self):
        assert self._process.poll() is None, "PgBouncer ended by itself"
        with suppress(psycopg.OperationalError), psycopg.connect(self.url, connect_timeout=2):
            return True
        return False

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
