"""How each API speaks: what a request asks for, and how answers, budgets and refusals are written."""

from .anthropic import Anthropic
from .openai import OpenAI
from .plain import Plain
from .style import Style

STYLES: dict[str, type[Style]] = {style.name: style for style in (OpenAI, Anthropic, Plain)}
