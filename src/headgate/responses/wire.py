"""Pure. Headers and bodies of responses as plain values: fields, documents, numbers, times.

The input comes from a server and may be anything: a value that is not understood in full is left out
(None, an empty list), never guessed, and nothing is raised. Durations are returned in seconds, from 0 to
31 days; the arithmetic is in integer nanoseconds and rounds up, so that no wait is shorter than the one the
server asked for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, TypeGuard

Fields = dict[str, list[str]]
Document = dict[str, Any]

SECOND = 10**9
DAY = 86_400 * SECOND
LONGEST = 31 * 86_400.0

_MOST_HEADERS = 4_096
_LONGEST_VALUE = 8_192
_LONGEST_TIME = 64
_LARGEST_BODY = 65_536
_MOST_ENTRIES = 16


# Headers


def fields_of(headers: object) -> Fields:
    """Every occurrence of the fields that are read here, in order, by lower-case name.

    They may tell of limits, date the response, or say how its body is written.
    """
    fields: Fields = {}
    try:
        for entry in entries_to_read(headers):
            if (type(entry) is not tuple and not _is_series(entry)) or len(entry) != 2:
                continue
            name, value = entry
            key = key_of(name)
            if key:
                for each in value if _is_series(value) else (value,):
                    text = text_of(each).strip(" \t")
                    # A very long number is still a wait; no other value of this length is understood here.
                    if len(text) <= _LONGEST_VALUE or _is_digits(text):
                        fields.setdefault(key, []).append(text)
    except Exception:  # noqa: BLE001, S110 - a foreign object may raise anything when touched: keep what it gave
        pass
    return fields


# All fields of Groq whose names begin with this stand under it: that there is one says enough.
GROQ = "x-groq-"
# Each of these is part of the names of fields that are read here.
_READ = re.compile("rate|limit|remaining|reset|retry|errortype|(?:date|age|content-type|content-encoding)$")
# What key_of says of names as servers write them. One that makes names up does not fill it for good.
_KEYS: dict[object, str] = {}
_MOST_KEYS = 2_048


def key_of(name: object) -> str:
    """The name of a field in lower case; empty if such a field is not read here."""
    text = name if type(name) is bytes or type(name) is str else text_of(name)
    key = _KEYS.get(text)
    if key is None:
        key = text_of(text).lower().removeprefix("llm_provider-")  # LiteLLM passes headers on this way
        if key.startswith(GROQ):
            key = GROQ
        elif not key.isascii() or not _READ.search(key):
            key = ""
        if len(_KEYS) >= _MOST_KEYS:
            _KEYS.clear()
        _KEYS[text] = key
    return key


def entries_to_read(headers: object) -> Iterable[Any]:
    """The entries of headers, of a list or tuple without the fields that are known not to be read here."""
    pairs = _pairs(headers)
    if type(pairs) is list or type(pairs) is tuple:  # nearly always
        key_of = _KEYS.get
        try:
            return [entry for entry in pairs[:_MOST_HEADERS] if key_of(entry[0]) != ""]
        except Exception:  # noqa: BLE001, S110 - an entry that is not a pair, among others
            pass
    return islice(pairs, _MOST_HEADERS)


def _pairs(headers: Any) -> Iterable[object]:
    # Clients that keep repeated fields apart offer them here; the others join them with commas.
    if type(headers) is list or type(headers) is tuple:
        return headers
    for offer in (getattr(headers, "multi_items", None), getattr(headers, "items", None)):
        if callable(offer):
            pairs: Iterable[object] = offer()
            return pairs
    return headers  # type: ignore[no-any-return]


def _is_series(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    kind = type(value)
    return kind is tuple or issubclass(
        kind, (list, tuple)
    )  # isinstance would ask the object, which may raise


def text_of(value: object) -> str:
    """*value* as text, empty if it has none."""
    if type(value) is str:  # nearly always, or bytes
        return value
    if type(value) is bytes:
        return value.decode("latin-1")
    if value is None:
        return ""
    with suppress(Exception):
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode("latin-1")
        # Through the class, so that not even a subclass of str can answer with something else.
        return str.__str__(value) if isinstance(value, str) else str(value)
    return ""


def trimmed(text: str) -> str:
    """Without space and tab around it, as in HTTP; a bare strip() would take newlines and more."""
    return text.strip(" \t")


def readings(occurrences: Iterable[str], read: Callable[[str], float | None]) -> list[float]:
    """What a repeated field says: each value as a whole, else all parts of a comma-joined value.

    The whole value is tried first because HTTP dates contain commas. A value with one bad part is skipped.
    """
    found: list[float] = []
    for text in occurrences:
        if (whole := read(text)) is not None:
            found.append(whole)
        elif "," in text:
            parts = [read(trimmed(part)) for part in text.split(",")]
            good = [part for part in parts if part is not None]
            found += good if len(good) == len(parts) else []
    return found


def longest(waits: Iterable[float | None]) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


# Structured fields (RFC 9651)

_KEY = r"[a-z*][a-z0-9_.*-]*"
_BARE = (
    r'"(?:[ !#-\[\]-~]|\\["\\])*"'  # string
    r"|-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9.])|-?[0-9]{1,15}(?![0-9.])"
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"  # token
    r"|:[A-Za-z0-9+/=]*:|\?[01]|@-?[0-9]{1,15}"  # bytes, boolean, date
)
_PARAMETER = re.compile(rf";[ ]*({_KEY})(?:=({_BARE}))?")
_PARAMETERS = rf"((?:;[ ]*{_KEY}(?:=(?:{_BARE}))?)*)"
_ITEM = re.compile(rf"({_BARE}){_PARAMETERS}")
_ENTRY = re.compile(rf"({_KEY})(?:=({_BARE}))?{_PARAMETERS}")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


def structured_list(lines: list[str]) -> list[tuple[str, dict[str, str]]] | None:
    """Each item with its parameters, all as written."""
    items = _structured(lines, _ITEM)
    if items is None:
        return None
    return [(item[1], dict(_PARAMETER.findall(item[2]))) for item in items]


def structured_dictionary(lines: list[str]) -> list[tuple[str, str]] | None:
    """Each key with its value as written, repeats included."""
    entries = _structured(lines, _ENTRY)
    return None if entries is None else [(entry[1], entry[2] or "") for entry in entries]


def _structured(lines: list[str], shape: re.Pattern[str]) -> list[re.Match[str]] | None:
    """All members, which may be spread over lines; None if one of them is malformed."""
    text = ", ".join(filter(None, lines))
    found: list[re.Match[str]] = []
    position = 0
    while member := shape.match(text, position):
        found.append(member)
        if member.end() == len(text):
            return found
        if not (comma := _COMMA.match(text, member.end())):
            return None
        position = comma.end()
    return None


# Bodies


def document_of(body: object) -> Document:
    """The JSON object in a body; empty if there is none. A list of one stands for its element."""
    if isinstance(body, str | bytes | bytearray):
        body = parsed(body) if len(body) <= _LARGEST_BODY else None
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body if isinstance(body, dict) else {}


def parsed(text: str | bytes | bytearray) -> object:
    """The value of a JSON text, None if it is not one."""
    try:
        if not isinstance(text, str):
            # Nearly always: a text in UTF-8 without a mark. What json.loads does, with fewer calls.
            plain = text[:1] in _OPENING and text[1:2] != b"\0"
            text = text.decode("utf-8" if plain else json.detect_encoding(text), "surrogatepass")
        text = text.strip(" \t\n\r")
        value, end = raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if end == len(text) else None


_OPENING = (b"{", b"[")
raw_decode = json.JSONDecoder().raw_decode


def at(node: object, *path: str) -> Any:
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def entries(node: object) -> list[Document]:
    """The objects among the first entries of a list."""
    if not isinstance(node, list):
        return []
    return [entry for entry in node[:_MOST_ENTRIES] if isinstance(entry, dict)]


def amount(value: object) -> float | None:
    """A count in a body, written as a number or as text. True is not 1."""
    if isinstance(value, str):
        return number(trimmed(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= 10**15 else None


# Numbers and times. float() and int() alone would let through NaN, 1e400, 1_000, +5 and the digits of
# other scripts, so every pattern is ASCII and is matched in full before anything is converted.

_DECIMAL = r"[0-9]+(?:\.[0-9]+)?"
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")


def number(text: str) -> float | None:
    """A count: zero or more, whole or decimal. Servers use negative numbers as sentinels for "unknown"."""
    if len(text) <= 15 and _is_digits(text):  # nearly always
        return int(text)
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text) if "." in text else int(text)
    return value if value <= 10**15 else None


def milliseconds(text: str) -> float | None:
    return None if number(text) is None else _seconds(_scaled(text, 10**6))


class Present:
    """The server's present: its Date header if that is plausible, else `now`, in seconds since 1970.

    Measuring dates from it cancels the error of the local clock. The earliest of several dates gives the
    longest wait. Most responses state no date that is measured from it, so it is read when one is.
    """

    __slots__ = ("_dates", "_now", "_ns")

    def __init__(self, dates: Iterable[str], now: object) -> None:
        self._dates = dates
        self._now = now
        self._ns: int | None = None

    @property
    def ns(self) -> int:
        """Nanoseconds since 1970."""
        if self._ns is None:
            self._ns = self._read()
        return self._ns

    def _read(self) -> int:
        here = 0  # where `now` is not a number: every date is then far off, which errs towards waiting
        with suppress(Exception):
            local = float(self._now)  # type: ignore[arg-type]  # what cannot be converted raises
            whole = math.floor(local)
            here = whole * SECOND + math.floor((local - whole) * SECOND)
        dates = (http_date(text, here) for text in self._dates)
        return min((date for date in dates if date is not None and abs(date - here) <= DAY), default=here)


def delay(text: str, present: Present) -> float | None:
    """Seconds of a Retry-After value. An absurdly large number stands for the longest wait."""
    if len(text) > 18 and _is_digits(text):
        return LONGEST
    return when(text, present, absurd=LONGEST)


def when(text: str, present: Present, *, absurd: float | None = None) -> float | None:
    """Seconds until the time *text* names, in any of the notations known here.

    *absurd* is returned for a number that is too large for a delay and is not a plausible date.
    """
    if len(text) > _LONGEST_TIME:
        return None
    if text[-1:] in _SIZES:
        return duration(text)
    if _NUMBER.fullmatch(text):
        return _delta_or_epoch(text, present, absurd)
    if (moment := _rfc3339(text)) is not None:
        return _seconds(moment - present.ns)
    if (moment := http_date(text, present.ns)) is not None:
        # The date names a whole second, so the wait for it is given in whole seconds.
        return _seconds(_rounded_up(moment - present.ns, SECOND) * SECOND)
    return None


def _delta_or_epoch(text: str, present: Present, absurd: float | None) -> float | None:
    # The ranges cannot overlap: 1e9 seconds since 1970 is 2001, and no real delay is that long.
    size = int(text.partition(".")[0])
    if size < 10**9:
        span = _scaled(text, SECOND)
        return _seconds(span) if span <= 31 * DAY else absurd
    for ceiling, unit in ((10**11, SECOND), (10**14, 10**6), (10**17, 10**3)):
        if size < ceiling:
            return _seconds(_scaled(text, unit) - present.ns)
    return absurd


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _scaled(text: str, unit: int) -> int:
    """Decimal *text* times *unit* nanoseconds, exactly, rounded up."""
    whole, _, fraction = text.partition(".")
    return _rounded_up(int(whole + fraction) * unit, 10 ** len(fraction))


def _rounded_up(nanoseconds: int, unit: int) -> int:
    return -(-nanoseconds // unit)


def _seconds(nanoseconds: int) -> float:
    return min(max(nanoseconds, 0), 31 * DAY) / SECOND


# Durations. Go prints the micro sign in UTF-8; clients that read headers as Latin-1 see two letters.

_SIZES = {
    "d": DAY,
    "h": 3_600 * SECOND,
    "m": 60 * SECOND,
    "s": SECOND,
    "ms": 10**6,
    "(?:u|\u00b5|\u03bc|\u00c2\u00b5)s": 10**3,
    "ns": 1,
}
_DURATION = re.compile("".join(f"(?:({_DECIMAL}){unit})?" for unit in _SIZES))

_WORDS = {"millisecond": 10**6, "second": SECOND, "minute": 60 * SECOND, "hour": 3_600 * SECOND}
_SPOKEN_SIZES = {
    **_WORDS,
    **{f"{word}s": size for word, size in _WORDS.items()},
    **{unit: size for unit, size in _SIZES.items() if unit.isalpha()},
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs"), 10**3),
}
_AMOUNT = rf"{_DECIMAL} ?(?:{'|'.join(_SPOKEN_SIZES)})(?![a-z])"
_AMOUNTS = rf"{_AMOUNT}(?:,?\s*(?:and )?{_AMOUNT})*"
_SPOKEN = re.compile(rf"(?:try again|retry)\s+(?:in|after)\s+({_AMOUNTS})(?![0-9])")
_PIECE = re.compile(rf"({_DECIMAL}) ?([a-z\u00b5\u03bc]+)")


def duration(text: str) -> float | None:
    """`1m30s`, `20ms`, `16m17.764s`: largest unit first, each at most once."""
    return _duration(text) if text and len(text) <= _LONGEST_TIME else None


# A server states the same few durations again and again.
@lru_cache(maxsize=1_024)
def _duration(text: str) -> float | None:
    letters = 2 if text.endswith("ms") else 1
    figure, unit = text[:-letters], text[-letters:]
    if unit in _SIZES and _is_digits(figure.replace(".", "", 1)) and figure[0] != "." != figure[-1]:
        return _seconds(_scaled(figure, _SIZES[unit]))  # nearly always
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    parts = zip(match.groups(), _SIZES.values(), strict=True)
    return _seconds(sum([_scaled(part, size) for part, size in parts if part]))


def spoken_wait(sentence: str) -> float | None:
    """The wait in "please try again in 6m30s" or "retry after 3 seconds"; the longest of several.

    Pieces add up ("2 minutes 30 seconds"): the first alone would be too short.
    """
    waits = [
        sum(_scaled(count, _SPOKEN_SIZES[unit]) for count, unit in _PIECE.findall(spoken[1]))
        for spoken in _SPOKEN.finditer(sentence)
    ]
    return _seconds(max(waits)) if waits else None


# Dates

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY_NAME = rf"(?P<weekday>{'|'.join(name[:3] for name in _DAYS)})"
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_HTTP_DATES = [
    # re.ASCII, because ignoring case in Unicode would take a long s for an s.
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        rf"{_DAY_NAME}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT",
        rf"(?P<weekday>{'|'.join(_DAYS)}), (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        rf"{_DAY_NAME} {_MONTH} (?P<day>[ 0-9]?[0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
]
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):?([0-5][0-9]))?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 8_000 * 365 * DAY  # the year 9964: a clock that is later is taken for this


def http_date(text: str, base: int) -> int | None:
    """The moment an HTTP-date names (IMF-fixdate, RFC 850 or asctime), in nanoseconds since 1970.

    *base* is the present, in the same unit.
    """
    return _http_date(text, base if "-" in text else 0)  # only RFC 850 has two digits for the year


# The responses of one second have the same dates.
@lru_cache(maxsize=64)
def _http_date(text: str, base: int) -> int | None:
    match = next(filter(None, (shape.fullmatch(text) for shape in _HTTP_DATES)), None)
    if match is None:
        return None
    year = int(match["year"])
    parts = (
        _MONTHS.index(match["month"].lower()) + 1,
        *map(int, match.group("day", "hour", "minute", "second")),
    )
    if len(match["year"]) == 2:
        # RFC 9110: the latest moment with these two digits that is at most fifty years ahead.
        present = _EPOCH + timedelta(microseconds=min(max(base, 0), _LATEST) // 1000)
        horizon = present.year + 50
        year = horizon - (horizon - year) % 100
        if year == horizon and parts > present.timetuple()[1:6]:
            year -= 100
    moment = _moment(year, *parts)
    if moment is None or not _DAYS[moment.weekday()].startswith(match["weekday"].lower()):
        return None
    return (moment - _EPOCH) // timedelta(seconds=1) * SECOND


@lru_cache(maxsize=256)
def _rfc3339(text: str) -> int | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    *digits, fraction, sign, hours, minutes = match.groups()
    moment = _moment(*map(int, digits))
    if moment is None or int(hours or 0) > 23:
        return None
    offset = (int(hours or 0) * 60 + int(minutes or 0)) * (-60 if sign == "-" else 60)
    whole = (moment - _EPOCH) // timedelta(seconds=1) - offset
    return whole * SECOND + _scaled(f"0.{fraction or 0}", SECOND)


def _moment(year: int, month: int, day: int, hour: int, minute: int, second: int) -> datetime | None:
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:  # 30 February, 25:00 or a leap second
        return None
