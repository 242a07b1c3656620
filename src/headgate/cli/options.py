"""How commands declare their options, read the values, and report what is wrong with them.

Answers go to stdout, words to stderr. An error is one line that says what is wrong and another that says what
to do.
"""

import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from ..limits import Rate

_COUNTED = ("requests", "tokens", "input_tokens", "output_tokens", "bytes")


class CommandError(click.ClickException):
    """The command cannot go on: `message` says why and `hint` what to do. The exit status is 2."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: Any = None) -> None:
        out = file or sys.stderr
        click.echo(click.style("error: ", fg="red", bold=True) + self.message, file=out)
        if self.hint:
            click.echo("\n" + click.style("hint: ", fg="cyan") + self.hint, file=out)


def wrong_usage(error: click.UsageError, ctx: click.Context) -> CommandError:
    """The same error; where something is missing, with an example from the help of the command."""
    said = _plain(" ".join(error.format_message().split()).removesuffix("."))
    hint = f"{ctx.command_path} --help explains it"
    if isinstance(error, click.MissingParameter):
        lines = (line.strip() for line in (ctx.command.help or "").splitlines())
        example = next((line for line in lines if line.startswith(f"{ctx.command_path} ")), None)
        hint = hint if example is None else f"write e.g. {example}; {hint}"
    return CommandError(said[:1].lower() + said[1:], hint)


def _plain(said: str) -> str:
    """What click says about a number, or about options that are spelt like an unknown one, in plain words."""
    said = re.sub(r"'([^']*)' is not a valid (float|integer)( range)?$", _not_a_number, said)
    return re.sub(r" \(Did you mean one of: (.*)\?\)$", r" Did you mean one of \1?", said)


def _not_a_number(found: re.Match[str]) -> str:
    return f"'{found[1]}' is not a {'whole ' if found[2] == 'integer' else ''}number"


# -- options in sections


class _Option(click.Option):
    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # the error for a value outside of it shows the range
        return extra


class Command(click.Command):
    """A command whose help lists the options by section, and which Ctrl-C ends with status 130."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise wrong_usage(error, ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(130)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=lambda param: not isinstance(param, _Option)):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


def section(title: str) -> Callable[..., Callable[[Any], Any]]:
    """A decorator for the options that the help lists under `title`.

    An option is declared as the help shows it, `"-o, --output FILE"`; with neither a value nor a type it is a
    flag. `name` is that of the parameter, if it is another one. The rest is passed to `click.option`.
    """

    def option(shown: str, text: str, type: Any = None, *, name: str = "", **details: Any) -> Any:
        flags, _, metavar = shown.replace(", ", ",").partition(" ")
        names = [*flags.split(","), *([name] if name else [])]
        if metavar or type is not None:
            details |= {"type": type, "metavar": metavar or None}
        else:
            details["is_flag"] = True
        return click.option(*names, cls=_Option, section=title, help=text, **details)

    return option


# -- types of values


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A value that `read` makes of the text; the message of its error is shown."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except (ValueError, TypeError) as error:
            self.fail(str(error), param, ctx)


def _rate(text: str) -> object:
    """A rate such as `500/minute`, or `auto`."""
    if text == "auto":
        return text
    rate = Rate.parse(text)
    if rate.unit not in _COUNTED:
        raise ValueError(f"{rate.unit!r} is not counted; write {', '.join(_COUNTED)}")
    return rate


def _price(text: str) -> object:
    """Prices of a million tokens, input and output: `0.15/0.60`."""
    from ..budgets.prices import Price  # noqa: PLC0415 - loads what --help can do without

    prices = text.split("/", 1)
    try:
        price = Price(float(prices[0]), float(prices[-1]))
    except ValueError:
        price = Price(-1, -1)
    if not (0 <= price.input < 1e9 and 0 <= price.output < 1e9):
        hint = "write that of a million tokens, in and out: 0.15/0.60"
        raise ValueError(f"{text!r} is not a price; {hint}")
    return price


def _header(text: str) -> object:
    """A header as `Name: value`. An error does not repeat the value, which may be a secret."""
    name, colon, content = text.partition(":")
    legal = name.strip() and all(c.isalnum() or c in "-_" for c in name.strip()) and name.isascii()
    if not colon or not legal or not (name + content).isprintable():
        raise ValueError(f"{name!r} is not a header; write 'Name: value'")
    return name.strip().lower(), content.strip()


def _fault(text: str) -> object:
    """A fault of the sandbox with its details: `storm,after=10,duration=5`."""
    from ..sandbox.faults import Fault  # noqa: PLC0415 - loads what --help can do without

    kind, *rest = (part.strip() for part in text.split(","))
    details: dict[str, Any] = {}
    for part in rest:
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} says nothing; write e.g. storm,after=10,duration=5")
        details[name.strip().replace("-", "_")] = _value_of(value.strip())
    known = [field.name for field in fields(Fault) if field.name != "kind"]
    wrong = next((name for name in details if name not in known), None)
    if wrong is not None:
        raise ValueError(f"a fault has no detail {wrong!r}; write one of {', '.join(known)}")
    return Fault(kind, **details)


def _value_of(text: str) -> Any:
    """A number, true, false or none; or else the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


RATE, PRICE = Parsed("rate", _rate), Parsed("price", _price)
HEADER, FAULT = Parsed("header", _header), Parsed("fault", _fault)
