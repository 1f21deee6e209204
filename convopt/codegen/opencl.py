"""OpenCL C. It is compiled by the device's own driver: what is made here is text.

Three things are changed of what TVM prints. Half precision comes from the extension where the device has it,
else from the compiler's _Float16 (PoCL). Every pointer comes with an offset in bytes, as memory objects of
OpenCL know no arithmetic. And constants keep all their bits, where TVM prints seven digits.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from convopt.codegen.device import DeviceCode, LoweredKernels
from convopt.targets import GpuTarget

_WIDTHS = (2, 4, 8, 16)


def tvm_target(target: GpuTarget) -> Any:
    import tvm

    return tvm.target.Target(
        {
            "kind": "opencl",
            "max_num_threads": target.most_threads,
            "max_shared_memory_per_block": target.shared_per_block,
            "thread_warp_size": 1,  # TVM would take lanes of a wave as being in step
        }
    )


def generate(lowered: LoweredKernels, target: GpuTarget) -> DeviceCode:
    import tvm

    functions = {g: _with_exact_constants(f) for g, f in lowered.module.functions.items()}
    built = tvm.get_global_func("target.build.opencl")(tvm.IRModule(functions), tvm_target(target))
    source = _once(with_offsets(str(built.inspect_source())))
    if re.search(r"\bhalf\d*\b", source):
        source = half_prelude() + re.sub(r"#ifdef cl_khr_fp16\n.*?#endif\n", "", source, flags=re.DOTALL)
    return DeviceCode(lowered.kernels, source, source.encode())


def _once(source: str) -> str:
    """TVM defines its loop of compare and swap anew for every kernel that adds atomically.

    `inline` alone is no definition where the compiler does not inline; `static` makes it one.
    """
    definition = re.compile(r"__inline (float atomic_add_float_emu\(.*?\n}\n)", re.DOTALL)
    first = definition.search(source)
    if first is None:
        return source
    rest = definition.sub("", source[first.end() :])
    return f"{source[: first.start()]}static inline {first.group(1)}{rest}"


def _with_exact_constants(function: Any) -> Any:
    """float32 constants that seven digits do not express become `as_float(bits)`."""
    import tvm_ffi
    from tvm import tirx

    def exact(number: Any) -> Any:
        value = np.float32(number.value)
        if str(number.ty.dtype) != "float32" or not np.isfinite(value) or np.float32(f"{value:.6e}") == value:
            return number
        return tirx.call_pure_extern("float32", "as_float", tirx.const(int(value.view(np.int32)), "int32"))

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.FloatImm, exact)))


def with_offsets(source: str) -> str:
    """Every parameter `__global T* p` becomes a base and an offset in bytes, added at the start."""

    def rewrite(match: re.Match[str]) -> str:
        head, parameters, end = match.groups()
        kept, starts = [], []
        for parameter in parameters.split(","):
            pointer = re.fullmatch(r"\s*(__global .*\*)\s*(restrict )?\s*(\w+)\s*", parameter)
            if pointer is None:
                kept.append(parameter.strip())
                continue
            kind, restrict, name = pointer.groups()
            kept += [f"__global char* {restrict or ''}{name}_base", f"ulong {name}_at"]
            starts.append(f"  {kind} {restrict or ''}{name} = ({kind})({name}_base + {name}_at);")
        body = "" if end == ";" else "\n" + "\n".join(starts)
        return f"{head}({', '.join(kept)}){end}{body}"

    return re.sub(
        r"(__kernel void(?:\s+__attribute__\(\(.*?\)\)\))?\s+\w+)\(([^)]*)\)(;| \{)", rewrite, source
    )


def half_prelude() -> str:
    """The type half, its vectors and their functions where the device lacks cl_khr_fp16."""
    overloadable = "static inline __attribute__((overloadable)) "
    lines = ["#ifdef cl_khr_fp16", "#pragma OPENCL EXTENSION cl_khr_fp16 : enable", "#else"]
    lines.append("typedef _Float16 convopt_half;")
    for n in _WIDTHS:
        lines.append(f"typedef _Float16 convopt_half{n} __attribute__((ext_vector_type({n})));")
        for space in ("__global", "__local", "__private"):
            lines.append(
                f"{overloadable}convopt_half{n} vload{n}(size_t o, const {space} convopt_half* p) "
                f"{{ convopt_half{n} r; for (int i = 0; i < {n}; ++i) r[i] = p[o * {n} + i]; return r; }}"
            )
            lines.append(
                f"{overloadable}void vstore{n}(convopt_half{n} v, size_t o, {space} convopt_half* p) "
                f"{{ for (int i = 0; i < {n}; ++i) p[o * {n} + i] = v[i]; }}"
            )
        lines.append(
            f"static inline convopt_half{n} convopt_to_half{n}(float{n} v) "
            f"{{ return __builtin_convertvector(v, convopt_half{n}); }}"
        )
        lines.append(
            f"{overloadable}float{n} convert_float{n}(convopt_half{n} v) "
            f"{{ return __builtin_convertvector(v, float{n}); }}"
        )
    lines.append(f"{overloadable}float convert_float(convopt_half v) {{ return (float)v; }}")
    lines.append("static inline convopt_half convopt_to_half(float v) { return (convopt_half)v; }")
    for name, sign in (("max", ">"), ("min", "<")):
        parameters = "(convopt_half a, convopt_half b)"
        lines.append(f"{overloadable}convopt_half {name}{parameters} {{ return a {sign} b ? a : b; }}")
    for suffix in ("", *_WIDTHS):
        lines.append(f"#define half{suffix} convopt_half{suffix}")
        lines.append(f"#define convert_half{suffix} convopt_to_half{suffix}")
    lines += ["#endif", ""]
    return "\n".join(lines)


def check_compiler() -> None:
    """Nothing is needed to make text."""
