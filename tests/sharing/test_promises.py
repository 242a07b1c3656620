"""The guide names a test for everything that it says will hold."""

import re
from pathlib import Path

STORES = {"all four", "SQLite", "Valkey", "Cluster", "PostgreSQL", "virtual time"}
ROOT = Path(__file__).parent.parent.parent


def test_every_test_that_the_guide_to_sharing_names_exists():
    section = (
        (ROOT / "docs/sharing.md").read_text("utf-8").partition("## What holds")[2].partition("\n## ")[0]
    )
    rows = [row for row in section.splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 25
    for row in rows:
        assert set(row.split(" | ")[1].split(", ")) <= STORES, row
        path, name = re.search(r"`(tests/[\w/]+\.py)::(\w+)` \|$", row).groups()
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), row
