"""The picture of a run: the tree of switches and hosts, with the traffic of each link.

Needs matplotlib, which the extra ``plots`` brings. Draws only what a record of `result` has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from switchagg.errors import UsageError, require
from switchagg.report.format import plain
from switchagg.report.plots import BLUE, FAINT, INK, ORANGE, RED, headless_pyplot

KINDS: Final = (".png", ".svg", ".pdf")
_UP, _DOWN, _LOST = BLUE, ORANGE, RED
_SWITCH, _HOST = "#dbe7ff", "#f1f5f9"
# With more hosts there is no room for text on every link.
_ROOM: Final = 20


def check(path: Path) -> None:
    """Raises `UsageError` where nothing can be drawn there."""
    require(path.suffix in KINDS, "plot", repr(str(path)), f"a file that ends in {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"plot: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError('matplotlib is missing: pip install "switchagg[plots]"') from None


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the picture of a record to a file of one of `KINDS`."""
    places = _places(result["links"])
    wide = max(1.0, *(x for x, _ in places.values())) + 1
    high = max(y for _, y in places.values())
    crowded = sum(y == 0 for _, y in places.values()) > _ROOM
    with headless_pyplot() as plt:
        figure, axes = plt.subplots(figsize=(min(40.0, max(8.0, 1.5 * wide)), 3.0 + 2.4 * high))
        for link in result["links"]:
            _link(axes, places, link, crowded)
        for name, (x, y) in places.items():
            _node(axes, name, x, y, result["switches"].get(name))
        axes.set_xlim(-0.8, wide - 0.7)
        axes.set_ylim(-0.5, high + 0.55)
        axes.axis("off")
        axes.set_title(_title(result), loc="left", color=INK, fontsize=11)
        axes.plot([], [], color=_UP, label="to the switch, or up the tree: mean Mbit/s, frames")
        axes.plot([], [], color=_DOWN, label="from it")
        if any(link["lost"] for link in result["links"]):
            axes.plot([], [], color=_LOST, label="lost on the link")
        axes.legend(loc="lower left", bbox_to_anchor=(0, -0.06), ncols=3, frameon=False, fontsize=8)
        figure.savefig(path, dpi=150, bbox_inches="tight")
        plt.close(figure)


def _places(links: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Returns x and y of each node: hosts in a row at y = 0, each switch above the middle of its children."""
    below: dict[str, list[str]] = {}
    for link in links:
        lower, upper = link["ends"]
        below.setdefault(upper, []).append(lower)
    lowered = {each for members in below.values() for each in members}
    places: dict[str, tuple[float, float]] = {}
    free = 0.0

    def put(name: str) -> None:
        nonlocal free
        members = below.get(name, [])
        if not members:
            places[name] = free, 0.0
            free += 1
            return
        for each in members:
            put(each)
        there = [places[each] for each in members]
        places[name] = sum(x for x, _ in there) / len(there), 1 + max(y for _, y in there)
        free += 0.4

    for name in below:
        if name not in lowered:
            put(name)
    return places


def _link(axes: Any, places: dict[str, tuple[float, float]], link: dict[str, Any], crowded: bool) -> None:
    (x0, y0), (x1, y1) = (places[each] for each in link["ends"])
    rate = 8e-6 * max(link["up"]["mean"], link["down"]["mean"])
    axes.plot([x0, x1], [y0, y1], color=FAINT, linewidth=1 + min(4.0, rate / 50), zorder=1)
    if crowded and y0 == 0:
        return
    # Near the lower end, where the links of a switch are far from each other.
    x, y = x0 + 0.22 * (x1 - x0), y0 + 0.34 * (y1 - y0)
    for step, (way, colour) in enumerate((("up", _UP), ("down", _DOWN))):
        text = f"{8e-6 * link[way]['mean']:,.1f} · {link[way]['packets']:,}"
        _words(axes, x, y + 0.06 - 0.1 * step, text, colour)
    if link["lost"]:
        _words(axes, x, y - 0.14, f"{link['lost']:,} lost", _LOST)


def _words(axes: Any, x: float, y: float, text: str, colour: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
    axes.text(x, y, text, color=colour, fontsize=7.5, ha="center", va="center", bbox=box, zorder=2)


def _node(axes: Any, name: str, x: float, y: float, counters: dict[str, int] | None) -> None:
    switch = y > 0
    text = plain(name)
    if switch and counters:
        shown = {key: counters.get(key, 0) for key in ("received", "accepted", "results")}
        text += "".join(f"\n{key} {value:,}" for key, value in shown.items())
    box = {
        "boxstyle": "round,pad=0.5" if switch else "circle,pad=0.4",
        "facecolor": _SWITCH if switch else _HOST,
        "edgecolor": INK if switch else FAINT,
    }
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=INK, bbox=box, zorder=3)


def _title(result: dict[str, Any]) -> str:
    parts = [f"{plain(result['topology'])} on {plain(result['switch'])}, {result['seconds']:.1f} s"]
    for name, job in result["jobs"].items():
        verdict = "every sum exact" if job["exact"] else "wrong sums"
        if job["algbw"]:
            verdict += f", {job['algbw'] / 1e6:.2f} MB/s, {job['packets_per_second']:,.0f} packets/s"
        parts.append(f"job {plain(name)}: {verdict}")
    return "\n".join(parts)
