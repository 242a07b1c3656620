"""Pure. The values that pass between a provider and its style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...limits import Rate

Pairs: TypeAlias = list[tuple[str, str]]
Charges: TypeAlias = dict[str, tuple[int, int]]  # by unit: what must be there, what is taken at admission


@dataclass(slots=True)
class Request:
    """A request as it was sent. Names of headers are lower-case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Ask:
    """What a request asks for."""

    endpoint: str
    model: str = ""
    stream: bool = False
    with_usage: bool = False
    input_tokens: int = 0
    most_tokens: int | None = None  # the maximum that the request sets for the answer
    wanted_tokens: int | None = None  # the length of the answer that the request asks for
    items: int = 0  # number of vectors
    width: int = 0  # of each vector
    base64: bool = False
    answer: tuple[int, Any] | None = None  # status and body that no limit applies to


@dataclass(slots=True)
class MeterLevel:
    """What remains of one limit."""

    unit: str
    rate: Rate
    remaining: int
    reset: int  # nanoseconds until all of it is available


@dataclass(slots=True)
class Refusal:
    """Why a request is not served: the limit, the amount asked for, and how long until it would fit."""

    unit: str
    level: MeterLevel | None = None
    requested: int = 0
    wait: int | None = None  # None if time alone does not help
    most: int = 0  # the largest amount that fits, for a request that never will


@dataclass(slots=True)
class Output:
    """The identity, the time and the length of an answer."""

    serial: int
    created: int  # seconds since 1970
    tokens: int = 0
    cut: bool = False  # at the maximum that the request set

    def name(self, prefix: str) -> str:
        return f"{prefix}{self.serial:024x}"
