"""HIP source: it computes what it should on a CPU, it compiles for AMD's chips without spills."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from convopt.codegen.hip import program_source
from convopt.codegen.hip_prelude import BUILTINS, matrix_function, prelude
from convopt.errors import CompileError
from convopt.runtime import hipcc
from convopt.runtime.device import open_device
from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
from convopt.targets import GPU_TARGETS, find_target
from convopt.targets.matrix_units import MATRIX_UNITS, MFMA_16, MMAC_16
from tests.hip.kernels import K100_AI, MATRIX, SIMT, assembly, problem, run_conv, source_of, spills
from tests.hip.stub_device import Stub

pytestmark = pytest.mark.hip
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.mark.parametrize(
    ("dtype", "schedule"),
    [
        ("float32", SIMT),
        ("float32", replace(SIMT, stages=1, swizzle=(1, 2), pad=(4, 4, 4), epilogue="direct")),
        ("float16", replace(SIMT, block_k=32, split_k=3, swizzle=(2, 1))),
        ("float32", replace(SIMT, split_k=2, atomic=True)),
        ("bfloat16", replace(SIMT, block_k=32)),
    ],
)
def test_multiply_adds_equal_float64(stub: Stub, dtype: str, schedule: ImplicitGemm) -> None:
    conv = problem(dtype)
    error = run_conv(open_device("hip"), source_of(schedule, conv), schedule, conv)
    assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow), "float32"])
@pytest.mark.parametrize(
    "schedule",
    [
        MATRIX,
        replace(MATRIX, block_k=16, stages=1, split_k=2, swizzle=(2, 1), pad=(8, 8, 4), epilogue="direct"),
    ],
)
def test_the_matrix_layer_without_a_matrix_unit(stub: Stub, dtype: str, schedule: ImplicitGemm) -> None:
    """A compiler that has no builtin: lanes exchange registers, by the table."""
    conv = problem(dtype)
    schedule = replace(schedule, unit=K100_AI.unit_of(dtype))
    error = run_conv(open_device("hip"), source_of(schedule, conv), schedule, conv)
    assert error <= TOLERANCE[dtype]


# What v_mmac_f32_16x16x16_f16 does, from public DTK test code and not from the table: lane l holds A[l % 16]
# and B[l % 16] at 4 * (l / 16) + r, and C[l % 16][l / 16 + 4 * r]. `mfma` is where AMD's unit has C instead.
_DECLARED = """typedef float unit_float4 __attribute__((ext_vector_type(4)));
typedef _Float16 unit_half4 __attribute__((ext_vector_type(4)));
static inline __device__ unit_float4 %s(unit_half4 a, unit_half4 b, unit_float4 c) {
  const int lane = __lane_id();
  for (int r = 0; r < 4; ++r) {
    const int row = %s, column = %s;
    for (int k = 0; k < 16; ++k)
      c[r] += __shfl((float)a[k %% 4], row + k / 4 * 16) * __shfl((float)b[k %% 4], column + k / 4 * 16);
  }
  return c;
}
"""
_MMAC_C, _MFMA_C = ("lane % 16", "lane / 16 + 4 * r"), ("4 * (lane / 16) + r", "lane % 16")


def _with_declared(source: str, builtin: str, place: tuple[str, str]) -> str:
    """The source for a compiler whose builtin is a function of ours."""
    assert f"__has_builtin({builtin})" in source and f"{builtin}(" in source
    source = source.replace(f"__has_builtin({builtin})", "1").replace(f"{builtin}(", "declared_unit(")
    include, newline, rest = source.partition("#include <hip/hip_runtime.h>\n")
    return include + newline + _DECLARED % ("declared_unit", *place) + rest


@pytest.mark.parametrize(
    "builtin", ["__builtin_hcu_mmac_f32_16x16x16_f16", "__builtin_amdgcn_mmac_f32_16x16x16f16"]
)
def test_mmac_by_its_builtin(stub: Stub, builtin: str) -> None:
    conv, schedule = problem("float16"), replace(MATRIX, split_k=2, swizzle=(2, 1), pad=(8, 8, 4))
    code, device = source_of(schedule, conv), open_device("hip")
    right = replace(code, binary=_with_declared(code.source, builtin, _MMAC_C).encode())
    assert run_conv(device, right, schedule, conv) <= TOLERANCE["float16"]
    wrong = replace(code, binary=_with_declared(code.source, builtin, _MFMA_C).encode())
    assert run_conv(device, wrong, schedule, conv) > 0.1, "the layout of MFMA went unnoticed"


def test_mmac_source_compiles_with_a_declared_builtin(tmp_path: Path) -> None:
    source = source_of(MATRIX, problem("float16")).source
    names = [builtin.name for builtin in BUILTINS["mmac.16x16x16", "float16"]]
    assert [source.index(f"__has_builtin({name})") for name in names] == sorted(
        source.index(f"__has_builtin({name})") for name in names
    ), "hcu comes before amdgcn"
    text = assembly(_with_declared(source, names[0], _MMAC_C), "gfx90a", tmp_path)
    assert spills(text) == 0 and "v_mfma" not in text


@pytest.mark.parametrize(
    ("name", "dtype"), [("hip:gfx90a", "float16"), ("hip:gfx942", "bfloat16"), ("hip:gfx90a", "float32")]
)
def test_mfma_is_used_where_the_compiler_has_it(name: str, dtype: str, tmp_path: Path) -> None:
    target = find_target(name)
    units = [unit for unit in target.matrix_units if dtype in MATRIX_UNITS[unit].dtypes]
    assert len(units) == 2
    for unit in units:
        schedule = replace(MATRIX, part_n=32, unit=unit, block_m=64, block_n=64)
        code = source_of(schedule, problem(dtype), target)
        text = assembly(code.source, target.arch, tmp_path)
        assert MATRIX_UNITS[unit].instruction in text and spills(text) == 0


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a", "gfx942"])
def test_default_instances_do_not_spill(arch: str, tmp_path: Path) -> None:
    """The first configurations that are proposed for large convolutions, on multiply-adds."""
    for dtype in ("float32", "float16"):
        conv = problem(dtype, features=256)
        first = next(s for s in ImplicitGemm.space(conv, K100_AI) if s.unit == "simt")
        text = assembly(source_of(first, conv).source, arch, tmp_path)
        assert spills(text) == 0
        assert "buffer_load_dwordx4" in text, "no load that checks its range"


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a"])
def test_hipcc_compiles_it(arch: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONVOPT_CACHE", str(tmp_path))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr(hipcc, "TOOLKITS", ())
    target = replace(K100_AI, arch=arch)
    codes = [
        source_of(SIMT, problem("float32"), target, "a"),
        source_of(MATRIX, problem("float16"), target, "b"),
    ]
    source = program_source(code.source for code in codes)
    assert hipcc.kernels_of(source) == ["a_0", "b_0"] and source.count("#include") == 1
    compiler = hipcc.find_hipcc()
    assert os.path.realpath(compiler.path) == "/usr/bin/hipcc"
    binary, _ = hipcc.compile_source(source, compiler)
    assert (
        binary.startswith(b"__CLANG_OFFLOAD_BUNDLE__")
        and f"hipv4-amdgcn-amd-amdhsa--{arch}".encode() in binary
    )


def test_the_file_is_readable() -> None:
    code = source_of(SIMT, problem("float32"))
    assert code.source.startswith("// convopt: HIP source for dcu:k100-ai\n// offload-arch: gfx928\n")
    assert re.search(r"^//   conv_0  grid 2 x 1 x 1  block 256 x 1 x 1  shared \d+ B, of these dynamic 0 B$",
                     code.source, re.M)  # fmt: skip
    assert "half" not in code.source and max(map(len, code.source.split("\n"))) < 400


def test_every_unit_of_amd_and_hygon_has_a_function() -> None:
    names = {n for t in GPU_TARGETS.values() if t.kind in ("rocm", "hip") for n in t.matrix_units}
    assert len(names) == 7
    for unit in (MATRIX_UNITS[name] for name in names):
        for dtype in unit.dtypes:
            text = matrix_function(unit, dtype)
            assert all(b.name in text for b in BUILTINS[unit.name, dtype])
    assert "mmac" not in prelude(f"{MFMA_16.helper}_float16(c, a, b);")
    assert "lane % 16, column = lane / 16 + r * 4" in matrix_function(MMAC_16, "float16")


def test_what_no_schedule_writes_is_refused() -> None:
    from tvm import tirx

    from convopt.codegen.hip_printer import print_kernel

    with pytest.raises(CompileError, match="k: HIP source has no While"):
        body = tirx.While(tirx.const(True, "bool"), tirx.Evaluate(tirx.const(0)))
        print_kernel(tirx.PrimFunc([], body), "k", 64)
