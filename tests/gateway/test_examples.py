"""The files in examples/ are true: the settings are read, and commands and options that they name exist."""

import tomllib
from pathlib import Path

from cli.commands import headgate
from headgate.gateway.settings import from_document

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_the_settings_are_read(tmp_path):
    (tmp_path / "tokens").write_text("ann:token-of-ann\nbob:token-of-bob\n")
    document = tomllib.loads((EXAMPLES / "headgate.toml").read_text())
    given = from_document(document, "headgate.toml", tmp_path)
    assert [each.name for each in given["upstreams"]] == ["openai", "anthropic"]
    rates = given["upstreams"][0].rates
    assert [(rate.amount, rate.unit) for rate in rates] == [(500, "requests"), (200_000, "tokens")]
    assert given["upstreams"][1].rates == "auto"
    assert [token.tenant for token in given["tokens"]] == ["ann", "bob"]
    assert (given["inject"], given["patience"], given["hosts"]) == (True, 15, ("gateway.internal",))


def test_the_unit_and_the_image_start_the_command_that_there_is():
    assert headgate("serve", "--help").returncode == 0
    for name in ("headgate.service", "Dockerfile"):
        text = (EXAMPLES / name).read_text()
        assert "--config" in text
        assert "/etc/headgate/headgate.toml" in text
        assert "serve" in text
        assert "SIGTERM" in text
