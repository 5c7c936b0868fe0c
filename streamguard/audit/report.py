"""The report of a backtest or a search: one HTML file with its plots in it, that needs nothing else."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from streamguard.errors import MissingExtraError

__all__ = ["Bar", "Line", "bar_plot", "line_plot", "write_report"]

Line = tuple[str, Sequence[float], Sequence[float]]
"""Its name, and where it goes through."""

Bar = tuple[str, float]

COLOURS: Final = ("#3b7dd8", "#d9822b", "#2f9e63", "#b04ac2")
NAME_CHARACTERS: Final = 34
"""Of a bar's name that are shown."""

INK: Final = "#808a96"
"""Readable on light and on dark alike."""


def line_plot(title: str, across: str, up: str, lines: Sequence[Line], *, second: Line | None = None) -> str:
    """Draw lines; a second scale, on the right, for one of another kind. Returns SVG."""
    figure, axes = _figure(6.4, 3.4)
    for (name, xs, ys), colour in zip(lines, COLOURS, strict=False):
        axes.plot(xs, ys, marker="o", markersize=3.5, linewidth=1.8, color=colour, label=name)
    handles, names = axes.get_legend_handles_labels()
    if second is not None:
        right = axes.twinx()
        right.plot(second[1], second[2], marker="s", markersize=3, linewidth=1.4, linestyle="--", color=COLOURS[3],
                   label=second[0])  # fmt: skip
        right.set_ylabel(second[0], color=INK)
        right.set_ylim(bottom=0)
        _plain(right)
        more = right.get_legend_handles_labels()
        handles, names = handles + more[0], names + more[1]
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(bottom=0)
    if len(handles) > 1:
        axes.legend(handles, names, frameon=False, labelcolor=INK, fontsize=8.5, loc="best")
    return _svg(figure, title)


def bar_plot(title: str, across: str, bars: Sequence[Bar]) -> str:
    """Draw bars, the first on top. Returns SVG."""
    figure, axes = _figure(6.4, 0.9 + 0.28 * max(len(bars), 1))
    names = [name if len(name) <= NAME_CHARACTERS else f"{name[:NAME_CHARACTERS]}..." for name, _ in bars]
    places = range(len(bars))
    axes.barh(places, [value for _, value in bars], color=COLOURS[0], height=0.66)
    axes.set_yticks(places, labels=[name.replace("$", r"\$") for name in names])
    axes.invert_yaxis()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(across)
    return _svg(figure, title)


def write_report(file: Path, **content: Any) -> None:
    """Write a report. Raises `MissingExtraError`."""
    try:
        from jinja2 import Environment, select_autoescape  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing("jinja2") from None
    template = resources.files("streamguard.audit").joinpath("report.html").read_text(encoding="utf-8")
    page = Environment(autoescape=select_autoescape(default_for_string=True)).from_string(template)
    file.write_text(page.render(version=version("streamguard"), **content), encoding="utf-8")


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing("matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _plain(axes)
    axes.grid(visible=True, axis="both", color=INK, alpha=0.18, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _plain(axes: Any) -> None:
    axes.patch.set_alpha(0)
    axes.tick_params(colors=INK, labelsize=8.5, length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _svg(figure: Any, title: str) -> str:
    """Return the figure as SVG that stands in a page: text as text, nothing outside referred to."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and there

    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": ["sans-serif"]}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Title": title})
    text = out.getvalue()
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"|(<svg )height="[^"]*"', r"\1\2", svg, count=1)


def _missing(name: str) -> MissingExtraError:
    return MissingExtraError(f"--report needs {name}, which is not installed: pip install 'streamguard[report]'")
