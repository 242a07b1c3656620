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


@pytest.mark.parametrize(
    ("typed", "error", "hint"),
    [
        ("rnu", "no such command 'rnu'. Did you mean 'run'?", "headgate --help explains it"),
        ("--hlep", "no such option '--hlep'", "headgate --help explains it"),
        (
            "run",
            "missing argument 'JOBS...'",
            "write e.g. headgate run requests.jsonl --to https://api.openai.com",
        ),
        ("run jobs.jsonl", "missing option '--to'", "headgate run --help explains it"),
        (
            "run jobs.jsonl --to http://a.b --too x",
            "no such option '--too'",
            "headgate run --help explains it",
        ),
        (
            "run jobs.jsonl --to http://a.b --rat 5/s",
            "no such option '--rat'. Did you mean one of '--format', '--rate', '--to'?",
            "headgate run --help explains it",
        ),
        ("run x --to http://a.b --max-cost five", "'--max-cost': 'five' is not a number", "run --help"),
        ("run jobs.jsonl --to http://a.b -o", "option '-o' requires an argument", "headgate run --help"),
        ("sandbox --port 99999", "99999 is not in the range", "headgate sandbox --help explains it"),
        ("sandbox --requests fast", "--requests 'fast': rate 'fast': it has no period", ""),
        ("sandbox --input-tokens fast", "--input-tokens 'fast': the openai style counts", ""),
        ("watch", "missing argument 'STORE'", "write e.g. headgate watch sqlite:///limits.db"),
        ("exec", "missing argument 'COMMAND...'", "write e.g. headgate exec -- python"),
        ("demo x", "got unexpected extra argument (x)", "headgate demo --help explains it"),
        ("completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'", "headgate completion --help"),
    ],
)
def test_wrong_usage_is_one_error_with_a_hint(typed, error, hint):
    done = CliRunner().invoke(main, typed.split(), prog_name="headgate")
    assert done.exit_code == 2
    first, _, rest = done.stderr.partition("\n")
    assert first.startswith("error: ")
    assert error in first
    assert hint in rest
    assert "Usage:" not in done.stderr


def test_without_a_command_the_help_lists_them_all():
    done = CliRunner().invoke(main, [], prog_name="headgate")
    assert done.exit_code == 2
    for name in main.commands:
        assert f"\n  {name} " in done.output
    assert "headgate COMMAND --help explains a command" in done.output
