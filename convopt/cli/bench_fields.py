"""The paths in the JSON document of `convopt bench`."""

from __future__ import annotations

ENGINE_FIELDS = {
    "layout": "of input and output: NCHW or NHWC",
    "median_ms": "of the counted calls; null where it took no part",
    "min_ms": "of the counted calls",
    "calls": "how many were counted",
    "gflops": "flop / median_ms; null for models",
    "max_error": "against onnxruntime without optimizations, see above",
    "refused": "why it took no part, else null",
}
CASE_FIELDS = {
    "name": "the file, the network or model, or the convolution's fields",
    "kind": "of convolution, for the summary by kinds; null for models",
    "count": "how often it occurs in its suite",
    "flop": "of a convolution; null for models",
    "nbytes": "input, weight and output once each; null for models",
    **{f"end_to_end{{}}.{field}": text for field, text in ENGINE_FIELDS.items()},
    **{f"native{{}}.{field}": text for field, text in ENGINE_FIELDS.items()},
    "native": "null for models",
    "ratio_end_to_end{}": "peer's median / convopt's, for each peer",
    "ratio_native{}": "the same in native layouts",
    "ratio_native": "null for models",
    "ratio_to_best_peer": "the least of the ratios; null without a peer",
}
STATE_FIELDS = {
    "import_s": "seconds from the process's start to convopt's import",
    "ready_s": "seconds of convopt.optimize, or of convopt.load",
    "first_result_s": "seconds of the first call",
    "total_s": "seconds from the process's start to the first result",
    "processes": "of how many these are medians",
}
FIELDS = {
    "protocol": "the text above",
    "machine.cpu": "model name",
    "machine.flags": "the CPU's flags of vector units",
    "machine.cores": "usable ones",
    "machine.target": "convopt's name of it",
    "precision": "that every engine was allowed inside",
    "seconds": "time for each engine, case and layout",
    "versions{}": "of each engine; null where it is not installed",
    "runs[].threads": "of every engine",
    "runs[].peak_gflops": "measured FMA peak on that many threads",
    "runs[].peak_refused": "why it could not be measured, else null",
    "runs[].bandwidth_gbs": "of a copy through memory on that many threads, reads and writes",
    **{f"runs[].cases[].{field}": text for field, text in CASE_FIELDS.items()},
    "runs[].kinds{}.geomean_ratio_to_best_peer": "over the cases of that kind; null without a ratio",
    "runs[].kinds{}.least_ratio_to_best_peer": "over the cases of that kind; null without a ratio",
    "runs[].behind[]": "names of the cases whose ratio_to_best_peer is below 1, the least first",
    "runs[].geomean_ratio_to_best_peer": "over the cases; null without a ratio",
    "runs[].least_ratio_to_best_peer": "over the cases; null without a ratio",
    "plots[]": "files written (--plot)",
    "startup[].name": "the file, the network or model (--startup)",
    "startup[].threads": "of the module (--startup)",
    **{f"startup[].states{{}}.{field}": f"{text} (--startup)" for field, text in STATE_FIELDS.items()},
    "overhead[].threads": "of the module (--overhead)",
    "overhead[].call_us": "microseconds of a call without its kernels (--overhead)",
    "overhead[].kernel_us": "microseconds that each empty kernel adds (--overhead)",
    "overhead[].points[].kernels": "launched by a call (--overhead)",
    "overhead[].points[].median_us": "of a call (--overhead)",
    "overhead[].points[].min_us": "of a call (--overhead)",
}
