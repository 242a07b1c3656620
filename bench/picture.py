"""Draws docs/goodput.png, the picture of the README, from the figures of goodput.py in RESULTS.md.

Bars of time and of 429s for two of the scenarios: a limit that clients know, and one that they have to find
out. The background is a plain card, so that it can be read on light and on dark pages. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from run import PARTS, RESULTS

PICTURE = Path(__file__).parent.parent / "docs" / "goodput.png"
SCENARIOS = {"known": "The limit is known", "unknown": "The limit has to be found out"}
LABELS = {
    "OpenAI SDK": "OpenAI SDK, 10 retries",
    "tenacity": "tenacity, exponential",
    "aiolimiter × 2": "aiolimiter, 2 processes",
    "AIMD": "rate halved by a 429",
}
CARD, INK, FAINT, OURS, OTHERS = "#f6f7f9", "#1f2530", "#5d6675", "#0f8579", "#9aa5b8"
JOBS = 600  # in both scenarios
PATIENCE = 3.0  # goodput.py stops a client at three times the ideal


class Bar(NamedTuple):
    """One client in one scenario."""

    client: str
    time: float  # over ideal
    refused: float  # 429s for each 100 jobs
    finished: bool


def read_bars(results: str) -> dict[str, list[Bar]]:
    """The bars of each scenario, from the table "Time over ideal" in the chapter of goodput.py."""
    chapter = results.partition(f"\n## {PARTS['goodput']}\n")[2].partition("\n## ")[0]
    table = chapter.partition("\nTime over ideal")[2].partition("\nCPU")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line
    ]
    if len(rows) < 3:
        raise SystemExit("error: RESULTS.md has no figures of goodput.py; run bench/run.py --only goodput")
    clients = rows[0][1:]
    figures = {row[0]: row[1:] for row in rows[2:]}
    return {
        scenario: [
            bar_of(client, cell)
            for client, cell in zip(clients, figures[scenario], strict=True)
            if "·" in cell
        ]
        for scenario in SCENARIOS
    }


def bar_of(client: str, cell: str) -> Bar:
    """Read a cell such as `1.019 · 8.878`, or `> 3 · 0.5` of a client that was stopped."""
    time, refused = cell.split("·")
    return Bar(client, float(re.sub(r"[> ]", "", time)), 100 * float(refused), ">" not in time)


def draw(bars: dict[str, list[Bar]], path: Path) -> None:
    count = sum(len(each) for each in bars.values())
    height = 1.2 + 0.25 * count + 0.4 * len(bars)
    figure = Figure(figsize=(9, height), dpi=140, facecolor=CARD)
    figure.text(
        0.03,
        1 - 0.42 / height,
        "The same calls through the same limited API",
        size=14.5,
        weight="bold",
        color=INK,
    )
    note = "64 workers. Left: time; 1.00 is what the limit allows. Right: how many calls the API refused."
    figure.text(0.03, 1 - 0.72 / height, note, size=9, color=FAINT)
    figure.subplots_adjust(left=0.235, right=0.94, top=1 - 1.1 / height, bottom=0.08 / height, wspace=0.32)
    time, refused = figure.subplots(1, 2, sharey=True)
    for axis, title in ((time, "time, × ideal"), (refused, "429s per 100 calls")):
        axis.set_facecolor(CARD)
        axis.set_title(title, loc="left", size=10, weight="bold", color=INK)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0, labelbottom=False)
    place, ticks, labels = 0.0, [], []
    for scenario, each in bars.items():
        time.text(-0.61, place, SCENARIOS[scenario], transform=time.get_yaxis_transform(), size=9.5,
                  weight="bold", color=INK, va="center")  # fmt: skip
        for bar in each:
            place += 1
            ticks.append(place)
            labels.append(LABELS.get(bar.client, bar.client))
            colour, weight = (OURS, "bold") if bar.client == "headgate" else (OTHERS, "normal")
            time.barh(place, bar.time, color=colour, height=0.72)
            refused.barh(place, bar.refused, color=colour, height=0.72)
            told = f"{bar.time:.2f}" if bar.finished else f"stopped at {bar.time:g}"
            time.text(bar.time + 0.03, place, told, size=9, va="center", color=INK, weight=weight)
            few = f"{bar.refused:.0f}" if bar.refused >= 10 or not bar.refused else f"{bar.refused:.1f}"
            refused.text(bar.refused + 10, place, few, size=9, va="center", color=INK, weight=weight)
        place += 1.6
    time.axvline(1, color=FAINT, linewidth=0.8, linestyle=(0, (3, 3)))
    time.set_yticks(ticks, labels, size=9.5, color=INK)
    time.set_ylim(place - 0.8, -0.7)
    time.set_xlim(0, PATIENCE + 0.1)
    refused.set_xlim(0, 1.06 * max(bar.refused for each in bars.values() for bar in each))
    figure.savefig(path)


def sentences(bars: dict[str, list[Bar]]) -> tuple[str, str]:
    """What README.md and docs/index.md say about the picture, and a row of the table in README.md."""
    unknown = {bar.client: bar for bar in bars["unknown"]}
    ours, retries = unknown["headgate"], unknown["OpenAI SDK"]
    few, many = (f"{JOBS * bar.refused / 100:,.0f}" for bar in (ours, retries))
    refused = f"{few} 429s" if ours.refused else "no 429"
    told = (
        f"headgate takes {ours.time:.2f} times the ideal time and gets {refused} in {JOBS} calls; "
        f"the OpenAI SDK with 10 retries gets {many}."
    )
    row = f"| 429s in {JOBS} calls, limit not told | {few}; the OpenAI SDK with `max_retries=10`: {many} |"
    return told, row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="where the figures are")
    parser.add_argument("--plot", type=Path, default=PICTURE, metavar="FILE", help="where the picture goes")
    arguments = parser.parse_args()
    bars = read_bars(arguments.results.read_text(encoding="utf-8"))
    draw(bars, arguments.plot)
    print("README.md and docs/index.md say:", *sentences(bars), sep="\n")


if __name__ == "__main__":
    main()
