"""The document of a comparison as pictures: how far ahead of each peer, and how near to the machine's limits.

Needs matplotlib (the extra `plot`), which is imported late.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convopt.errors import InputError
from convopt.runtime.folders import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {  # Okabe and Ito's, told apart by everyone
    "convopt": "#D55E00",
    "onnxruntime": "#0072B2",
    "openvino": "#009E73",
    "torch": "#CC79A7",
    "inductor": "#E69F00",
}
BAR_INCHES = 0.16


def require_matplotlib() -> None:
    """Raises InputError where it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'convopt[plot]'")


def write_plots(document: dict[str, Any], folder: Path) -> list[Path]:
    """ratios-N-threads.svg and, where convolutions were measured, roofline-N-threads.svg for each run."""
    written = []
    peers = [name for name in document["versions"] if name != "convopt"]
    for run in document["runs"]:
        pictures = {"ratios": ratio_figure(run, peers)}
        if any(case["flop"] for case in run["cases"]):
            pictures["roofline"] = roofline_figure(run, ["convopt", *peers])
        for name, figure in pictures.items():
            path = folder / f"{name}-{run['threads']}-thread{'s' if run['threads'] > 1 else ''}.svg"
            _save(figure, path)
            written.append(path)
    return written


def _save(figure: Figure, path: Path) -> None:
    """The same document gives the same file."""
    import matplotlib

    svg: Any = {"svg.hashsalt": "convopt", "svg.fonttype": "none"}
    with written_whole(path) as temporary, matplotlib.rc_context(svg):
        figure.savefig(temporary, format="svg", metadata={"Date": None}, bbox_inches="tight")


def ratio_figure(run: dict[str, Any], peers: Sequence[str]) -> Figure:
    """A bar for each case and peer: peer's time / convopt's, cases from least to most ahead."""
    from matplotlib.figure import Figure

    cases = [case for case in run["cases"] if case["ratio_to_best_peer"] is not None]
    cases.sort(key=lambda case: -case["ratio_to_best_peer"])
    step = len(peers) + 1
    figure = Figure(figsize=(8, 1 + BAR_INCHES * step * max(1, len(cases))))
    axes = figure.add_subplot()
    for offset, peer in enumerate(peers):
        ratios = [(case["ratio_native"] or case["ratio_end_to_end"]).get(peer, 0.0) for case in cases]
        at = [index * step - offset for index in range(len(cases))]
        axes.barh(at, ratios, height=0.9, color=COLOURS[peer], label=peer)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(
        [index * step - (len(peers) - 1) / 2 for index in range(len(cases))],
        [case["name"] for case in cases],
        fontsize=6,
    )
    axes.set_xlabel(f"peer's time / convopt's, {run['threads']} thread(s)")
    axes.margins(y=0.01)
    axes.legend()
    return figure


def roofline_figure(run: dict[str, Any], engines: Sequence[str]) -> Figure:
    """GFLOP/s of each engine and convolution over its FLOP/byte, under the measured peak and bandwidth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    axes: Axes = figure.add_subplot()
    cases = [case for case in run["cases"] if case["flop"]]
    intensities = [case["flop"] / case["nbytes"] for case in cases]
    low, high = min(intensities) / 2, max(intensities) * 2
    bandwidth, peak = run["bandwidth_gbs"], run["peak_gflops"]
    ridge = peak / bandwidth if peak else high
    axes.plot([low, ridge], [low * bandwidth, ridge * bandwidth], color="black", linewidth=1)
    if peak:
        axes.plot([ridge, max(high, ridge)], [peak, peak], color="black", linewidth=1)
    for engine in reversed(engines):  # convopt's points on top
        points = [
            (at, result["gflops"])
            for at, case in zip(intensities, cases, strict=True)
            if (result := case["native"][engine])["gflops"]
        ]
        if points:
            at, rates = zip(*points, strict=True)
            axes.scatter(at, rates, s=14, color=COLOURS[engine], label=engine)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP / byte (input, weight and output once)")
    axes.set_ylabel("GFLOP/s of a direct convolution")
    title = f"{run['threads']} thread(s); memory {bandwidth:.0f} GB/s"
    axes.set_title(title + (f", FMA peak {peak:.0f} GFLOP/s (Winograd may exceed it)" if peak else ""))
    axes.legend()
    return figure
