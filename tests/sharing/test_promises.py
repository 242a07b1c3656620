"""The guide names a test for everything that it says will hold."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_test_that_the_guide_to_sharing_names_exists():
    section = (
        (ROOT / "docs/sharing.md").read_text("utf-8").partition("## What holds")[2].partition("\n## ")[0]
    )
    rows = [row for row in section.splitlines() if row.startswith("| ")][2:]
    assert len(rows) >= 15
    for row in rows:
        path, name = re.search(r"`(tests/[\w/]+\.py)::(\w+)` \|$", row).groups()
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), row
