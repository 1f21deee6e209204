"""The document of `convopt bench` as tables."""

from __future__ import annotations

from typing import Any

from convopt.report.tables import Column, number, print_line, print_table


def show_bench(document: dict[str, Any]) -> None:
    """The machine, then what was measured: engines side by side, starts, or calls of empty kernels."""
    machine = document["machine"]
    where = f"{machine['device']}, {machine['target']}; " if machine["device"] else ""
    cpu = f"{machine['cpu']}, {machine['cores']} cores"
    print_line(f"{where}{cpu}" if where else f"{cpu}, {machine['target']}")
    if "startup" in document:
        _show_startup(document["startup"])
    elif "overhead" in document:
        _show_overhead(document["overhead"])
    else:
        versions = document["versions"].items()
        print_line(", ".join(f"{name} {version or '(missing)'}" for name, version in versions))
        for run in document["runs"]:
            _show_run(run, list(document["versions"]), document["precision"], machine["device"] is not None)
        for path in document.get("plots", ()):
            print_line(f"wrote {path}")


def _show_run(run: dict[str, Any], engines: list[str], precision: str, on_gpu: bool) -> None:
    """One table for each kind of measurement, the summary, and who could not take part."""
    peak = run["peak_gflops"]
    where = precision if on_gpu else _threads(run["threads"])
    title = f"{where}; declared peak " if on_gpu else f"{where}, {precision}; FMA peak "
    print_line(
        title
        + (f"{peak:.0f} GFLOP/s" if peak else f"not measured: {run['peak_refused']}")
        + f", memory {run['bandwidth_gbs']:.0f} GB/s"
    )
    for kind, title in (("native", "native layouts"), ("end_to_end", "end to end, NCHW")):
        if any(case[kind] for case in run["cases"]):
            _show_kind(run, kind, title, engines)
    for kind, case in ((k, c) for k in ("native", "end_to_end") for c in run["cases"]):
        for name, result in (case[kind] or {}).items():
            if result["refused"]:
                print_line(f"{name} took no part in {case['name']} ({kind}): {result['refused']}")
    for kind, found in run["kinds"].items():
        if len(run["kinds"]) > 1 and found["geomean_ratio_to_best_peer"] is not None:
            print_line(f"{kind}: {_summary(found)}")
    if run["behind"]:
        print_line("behind the best peer: " + "; ".join(map(_compact, run["behind"])))
    if run["geomean_ratio_to_best_peer"] is not None:
        print_line(f"ratio to the best peer, {where}: {_summary(run)}")


def _summary(found: dict[str, Any]) -> str:
    mean, least = found["geomean_ratio_to_best_peer"], found["least_ratio_to_best_peer"]
    return f"geometric mean {mean:.2f}, least {least:.2f}"


def _show_kind(run: dict[str, Any], kind: str, title: str, engines: list[str]) -> None:
    peers = [name for name in engines if name != "convopt"]
    peak = run["peak_gflops"]
    columns = [Column("case"), Column("x", True), *(Column(name, True) for name in engines)]
    columns += [Column("GFLOP/s", True), Column("of peak", True)]
    columns += [*(Column(f"vs {name}", True) for name in peers), Column("vs best", True)]
    columns.append(Column("error", True))
    rows = []
    for case in run["cases"]:
        results, ours = case[kind], case[kind]["convopt"]
        ratios = case[f"ratio_{kind}"] or {}
        rows.append(
            [
                _compact(case["name"]),
                str(case["count"]),
                *(_times(results[name]) for name in engines),
                number(ours["gflops"], 0),
                f"{100 * ours['gflops'] / peak:.0f}%" if peak and ours["gflops"] else "",
                *(number(ratios.get(name)) for name in peers),
                number(min(ratios.values(), default=None)),
                "" if ours["max_error"] is None else f"{ours['max_error']:.1e}",
            ]
        )
    print_table(
        f"{title}: median (min) ms, GFLOP/s and error of convopt, time of each peer / convopt's",
        columns,
        rows,
    )


def _show_startup(found: list[dict[str, Any]]) -> None:
    columns = [Column("model"), Column("threads", True), Column("start")]
    columns += [Column(title, True) for title in ("import", "ready", "first result", "total", "processes")]
    parts = ("import_s", "ready_s", "first_result_s", "total_s")
    rows = [
        (
            one["name"],
            str(one["threads"]),
            state,
            *(number(times[part]) for part in parts),
            str(times["processes"]),
        )
        for one in found
        for state, times in one["states"].items()
    ]
    print_table("from a fresh process to the first result: seconds", columns, rows)


def _show_overhead(found: list[dict[str, Any]]) -> None:
    columns = [Column(title, True) for title in ("threads", "kernels", "median", "min")]
    rows = [
        [
            str(one["threads"]),
            str(point["kernels"]),
            number(point["median_us"], 1),
            number(point["min_us"], 1),
        ]
        for one in found
        for point in one["points"]
    ]
    print_table("us a call of empty kernels", columns, rows)
    for one in found:
        print_line(
            f"{_threads(one['threads'])}: "
            f"{one['call_us']:.1f} us a call and {one['kernel_us']:.2f} us a kernel"
        )


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


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
