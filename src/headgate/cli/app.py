"""`headgate`: the group of all commands, and the entry point."""

from typing import Any

import click

from .demo.command import demo
from .doctor import doctor
from .exec import exec_command
from .options import Command, wrong_usage
from .run.command import run
from .sandbox import sandbox
from .serve import serve
from .watch import watch

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 108, "show_default": True}


class _Commands(click.Group):
    """Lists the commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            return super().parse_args(ctx, args)  # shows the help
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise wrong_usage(error, ctx) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise wrong_usage(error, ctx) from None


@click.group(cls=_Commands, context_settings=_SETTINGS, epilog="headgate COMMAND --help explains a command.")
@click.version_option(None, "-V", "--version", package_name="headgate", prog_name="headgate")
def main() -> None:
    """One gate for everything that calls a rate-limited API.

    \b
    headgate run requests.jsonl --to https://api.openai.com -o answers.jsonl
    headgate exec -- python agents.py
    headgate serve --to https://api.openai.com
    headgate watch sqlite:///limits.db
    headgate doctor myapp.llm:client
    headgate sandbox --requests 600/minute --tokens 100_000/minute
    headgate demo
    """


@click.command(cls=Command, short_help="Completion for bash, zsh and fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete headgate's commands and options.

    \b
    bash:  echo 'eval "$(headgate completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(headgate completion zsh)"' >> ~/.zshrc
    fish:  headgate completion fish > ~/.config/fish/completions/headgate.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only for this command

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "headgate", "_HEADGATE_COMPLETE").source())


main.add_command(run)
main.add_command(exec_command, "exec")
for _command in (serve, watch, doctor, sandbox, demo, completion):
    main.add_command(_command)
