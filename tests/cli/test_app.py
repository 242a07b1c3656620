"""`headgate` itself: completion and help."""

import pytest
from click.testing import CliRunner

from headgate.cli.app import main


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("wa", "watch"),
        ("run --sto", "--store"),
        ("watch --on", "--once"),
        ("sandbox --style an", "anthropic"),
    ],
)
def test_completion_offers_commands_and_options(typed, offered):
    words = ["headgate", *typed.split()]
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(
        main, prog_name="headgate", env={"_HEADGATE_COMPLETE": "bash_complete", **asked}
    )
    assert offered in done.output


def test_completion_for_each_shell():
    for shell in ("bash", "zsh", "fish"):
        done = CliRunner().invoke(main, ["completion", shell])
        assert done.exit_code == 0
        assert "_HEADGATE_COMPLETE" in done.output


def test_the_help_of_run_has_sections_and_fits_the_line():
    done = CliRunner().invoke(main, ["run", "--help"])
    assert done.exit_code == 0
    for heading in ("Where:", "Limits:", "Trouble:", "Showing:", "Exit status:"):
        assert heading in done.output
    assert max(map(len, done.output.splitlines())) <= 110
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0
    assert CliRunner().invoke(main, ["--version"]).exit_code == 0
