"""The picture of a run: one group of bars per case, peer over tapejit, on a log axis.

Bars start at 1, where a peer is as fast as tapejit: to the right it is slower, to the
left faster. The length is the ratio of the best rounds; the small circle is the ratio
by median of the same rounds, so a bar far from its circle was measured on a busy
machine. A black stroke is a goal stated as a ratio. Imported only for `--plot`, as
matplotlib is an extra.

Start reading at `draw`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.case import OURS, AtLeast, Leads
from benchmarks.measure import Settings
from benchmarks.peers import package_name
from benchmarks.report import Result, facts_line, machine_facts, significant

# Colours that stay apart for colour-blind readers; one per package, always the same.
COLOURS = {
    "numpy": "#999999",
    "torch": "#d55e00",
    "tensorflow": "#e69f00",
    "jax": "#0072b2",
    "autograd": "#009e73",
    "pytensor": "#cc79a7",
    "tapejit": "#000000",
}

MEDIAN_MARK: dict[str, Any] = {
    "marker": "o",
    "ms": 3.5,
    "mfc": "white",
    "mec": "black",
    "mew": 0.7,
}

BAR_INCHES = 0.21
GAP_BARS = 1.0


def bars_of(result: Result) -> list[tuple[str, float, float]]:
    """(peer, ratio by best, ratio by median) for every peer but tapejit itself."""
    bars = []
    for peer in result.outcomes:
        ratio = result.ratio(peer)
        if ratio is not None and peer != OURS:
            bars.append((peer, *ratio))
    return bars


def draw(results: Sequence[Result], file: Path, settings: Settings) -> None:
    """Write the picture of `results` to `file`."""
    groups = [(result, bars) for result in results if (bars := bars_of(result))]
    if not groups:
        raise ValueError("nothing to draw: no case ran both tapejit and a peer")
    rows = sum(len(bars) + GAP_BARS for _, bars in groups)
    figure, axes = plt.subplots(
        figsize=(9, BAR_INCHES * rows + 1.5), layout="constrained"
    )
    axes.set_xscale("log")
    edges = [r for _, bars in groups for bar in bars for r in bar[1:]]
    low, high = min(*edges, 1.0) / 1.6, max(*edges, 1.0) * 2.2

    y, ticks, names = 0.0, [], []
    for number, (result, bars) in enumerate(groups):
        top, bottom = y - 0.5 - GAP_BARS / 2, y + len(bars) - 0.5 + GAP_BARS / 2
        if number % 2:
            axes.axhspan(top, bottom, color="#f4f4f4", zorder=0)
        ticks.append(y + (len(bars) - 1) / 2)
        names.append(result.case.name)
        for peer, best, middle in bars:
            draw_bar(axes, y, peer, best, middle)
            for goal in result.case.goals:
                if isinstance(goal, Leads) or (
                    isinstance(goal, AtLeast) and goal.peer == peer
                ):
                    axes.plot([goal.ratio] * 2, [y - 0.45, y + 0.45], "k", lw=2)
            y += 1
        y += GAP_BARS

    axes.axvline(1, color="black", lw=1, zorder=3)
    axes.set_yticks(ticks, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y - 0.5 - GAP_BARS / 2, -0.5 - GAP_BARS / 2)
    axes.set_xlim(low, high)
    marks = [m * 10.0**e for e in range(-4, 7) for m in (1, 2, 5)]
    axes.xaxis.set_major_locator(FixedLocator([m for m in marks if low <= m <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.grid(axis="x", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(
        "time of the peer ÷ time of tapejit (right of 1x tapejit is faster)"
    )
    key = [
        Line2D([], [], color="black", lw=2, label="goal"),
        Line2D([], [], ls="", **MEDIAN_MARK, label="by median of the same rounds"),
    ]
    axes.legend(
        handles=key,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        frameon=False,
        fontsize=7.5,
        borderaxespad=0.2,
    )
    axes.set_title("tapejit beside its peers", loc="left", fontweight="bold")
    facts = facts_line(machine_facts(results), settings)
    figure.supxlabel(wrapped(facts, 150), fontsize=7, color="#666", x=0.02, ha="left")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def draw_bar(axes: Any, y: float, peer: str, best: float, middle: float) -> None:
    """One peer's bar, its median, its name and number."""
    hatch = "" if peer == package_name(peer) else "////"
    axes.barh(
        y,
        best - 1,
        left=1,
        height=0.8,
        color=COLOURS[package_name(peer)],
        hatch=hatch,
        edgecolor="white",
        lw=0,
        zorder=2,
    )
    axes.plot(middle, y, zorder=4, **MEDIAN_MARK)
    # The label stands beyond whatever reaches furthest from 1 on the bar's side.
    outward = max(best, middle, 1.0) if best >= 1 else min(best, middle)
    axes.annotate(
        f"{peer}  {significant(best)}x",
        (outward, y),
        xytext=(6 if best >= 1 else -6, 0),
        textcoords="offset points",
        ha="left" if best >= 1 else "right",
        va="center",
        fontsize=7.5,
    )


def wrapped(text: str, width: int) -> str:
    """`text` in lines of at most `width` characters, broken between words.

    >>> wrapped("one two three", 7)
    'one two\\nthree'
    """
    return "\n".join(textwrap.wrap(text, width))
