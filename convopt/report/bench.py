"""The document of `convopt bench` as tables."""

from __future__ import annotations

from typing import Any

from convopt.report.tables import Column, number, print_line, print_table


def show_bench(document: dict[str, Any]) -> None:
    """The machine, one table for each kind of measurement, the summary, and who could not take part."""
    machine = document["machine"]
    peak = machine["peak_gflops"]
    print_line(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['target']}; {document['threads']} threads, "
        f"{document['precision']}; FMA peak "
        + (f"{peak:.0f} GFLOP/s" if peak else f"not measured: {machine['peak_refused']}")
    )
    print_line(
        ", ".join(f"{name} {version or '(missing)'}" for name, version in document["versions"].items())
    )
    for kind, title in (("native", "native layouts"), ("end_to_end", "end to end, NCHW")):
        if any(case[kind] for case in document["cases"]):
            _show_kind(document, kind, title)
    for kind, case in ((k, c) for k in ("native", "end_to_end") for c in document["cases"]):
        for name, result in (case[kind] or {}).items():
            if result["refused"]:
                print_line(f"{name} took no part in {case['name']} ({kind}): {result['refused']}")
    mean, least = document["geomean_ratio_to_best_peer"], document["least_ratio_to_best_peer"]
    if mean is not None:
        print_line(f"ratio to the best peer: geometric mean {mean:.2f}, least {least:.2f}")


def _show_kind(document: dict[str, Any], kind: str, title: str) -> None:
    engines = list(document["versions"])
    peers = [name for name in engines if name != "convopt"]
    peak = document["machine"]["peak_gflops"]
    columns = [Column("case"), Column("x", True), *(Column(name, True) for name in engines)]
    columns += [Column("GFLOP/s", True), Column("of peak", True)]
    columns += [*(Column(f"vs {name}", True) for name in peers), Column("error", True)]
    rows = []
    for case in document["cases"]:
        results, ours = case[kind], case[kind]["convopt"]
        ratios = case[f"ratio_{kind}"] or {}
        errors = [r["max_error"] for r in results.values() if r["max_error"] is not None]
        rows.append(
            [
                _compact(case["name"]),
                str(case["count"]),
                *(_times(results[name]) for name in engines),
                number(ours["gflops"], 0),
                f"{100 * ours['gflops'] / peak:.0f}%" if peak and ours["gflops"] else "",
                *(number(ratios.get(name)) for name in peers),
                f"{max(errors):.1e}" if errors else "",
            ]
        )
    print_table(f"{title}: median (min) ms, GFLOP/s of convopt, time of each peer / convopt's", columns, rows)


def _compact(name: str) -> str:
    """`n=1,c=64,h=56,...` as `1x64x56x56 k64 3x3 s1 p1`, which leaves room for times; a path as it is."""
    if not name.startswith("n="):
        return name
    field = dict(part.split("=") for part in name.split(","))
    extents = "x".join(field[key] for key in "nchw")
    optional = "".join(f" {key[0]}{field[key]}" for key in ("dilation", "groups") if key in field)
    return f"{extents} k{field['k']} {field['r']}x{field['s']} s{field['stride']} p{field['pad']}{optional}"


def _times(result: dict[str, Any]) -> str:
    if result["median_ms"] is None:
        return "-"
    return f"{result['median_ms']:.3f} ({result['min_ms']:.3f})"
