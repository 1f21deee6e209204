"""GPUs: what a kernel may use of each chip and what its time is estimated from, declared with the sources.

Sources, by the letter behind a chip: [N] NVIDIA's A100 and H100 architecture white papers and the CUDA C++
programming guide's table of compute capabilities (threads, registers, shared memory), data sheets (peaks
and bandwidth); [R] ROCm's GPU hardware specifications and the CDNA2, CDNA3 and RDNA3 instruction set guides
(registers, LDS, waves); [D] public DCU benchmark repositories (hblas-bench, tilelang-hygon's target_utils)
and contest reports; (i) marks what is inferred and wants confirmation on hardware. Peaks are the usual
public figures, not measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from convopt.errors import InputError
from convopt.targets.matrix_units import MATRIX_UNITS

KB = 1 << 10
MB = 1 << 20


@dataclass(frozen=True)
class GpuTarget:
    """A GPU as the schedules see it. CU: compute unit (AMD, Hygon), streaming multiprocessor (NVIDIA).

    kind: the code generator ("cuda", "rocm", "hip", "opencl"). matrix_units: names in
    `convopt.targets.matrix_units`, the preferred first. Bytes and counts are per CU unless said otherwise.
    """

    name: str
    kind: str
    arch: str
    chip: str
    compute_units: int
    wave: int  # lanes
    shared_per_block: int  # bytes, opted in where the driver asks for it
    shared_per_cu: int  # bytes
    registers_per_cu: int  # 32-bit
    register_step: int  # a thread's registers are given out in multiples of this
    most_waves: int
    l2: int  # bytes that a CU's blocks share
    clock: float  # Hz
    vector_flops: int  # fp32 FLOP per clock, 2 per multiply-add
    matrix_flops: int  # FLOP per clock on the matrix units of 16-bit elements, 0 without
    memory_rate: float  # bytes/s of the whole chip
    matrix_units: tuple[str, ...] = ()
    matrix_flops_f32: int = 0  # likewise of float32 elements; NVIDIA's are rounded to tf32
    async_copy: bool = False  # global to shared memory without registers (cp.async)
    static_shared: int = 64 * KB  # bytes beyond which shared memory must be dynamic
    most_registers: int = 256  # per thread
    most_threads: int = 1024  # per block
    partitions: int = 1  # chiplets with an L2 each, blocks handed out round robin
    banks: int = 32
    bank_bytes: int = 4

    def flops(self, unit: str) -> int:
        """FLOP per clock of a CU. unit: "simt", or a matrix unit's name."""
        if unit == "simt":
            return self.vector_flops
        return self.matrix_flops_f32 if MATRIX_UNITS[unit].itemsize == 4 else self.matrix_flops

    def unit_of(self, dtype: str, arithmetic: str = "float32") -> str:
        """The preferred matrix unit for elements of the type; "simt" where there is none.

        arithmetic: what a `ConvProblem` allows.
        """
        units = (name for name in self.matrix_units if MATRIX_UNITS[name].takes(dtype, arithmetic))
        return next(units, "simt")

    @property
    def has_tf32(self) -> bool:
        return any(MATRIX_UNITS[name].arithmetic == "tf32" for name in self.matrix_units)


# wmma reads and stores fragments as mma.sync does at best: it comes second, but where it is the only one.
_NVIDIA = GpuTarget(
    "cuda", "cuda", "", "", 0, 32, 0, 0, 64 * KB, 8, 64, 0, 0.0, 0, 0, 0.0,
    ("mma.m16n8k16", "mma.m16n8k8", "wmma.m16n16k16.f16", "wmma.m16n16k16.bf16"), async_copy=True,
    static_shared=48 * KB, most_registers=255,
)  # fmt: skip
# [N]; memory 1.56 TB/s is the 40 GB part's.
A100 = replace(
    _NVIDIA, name="cuda:sm_80", arch="sm_80", chip="NVIDIA A100", compute_units=108,
    shared_per_block=163 * KB, shared_per_cu=164 * KB, l2=40 * MB, clock=1.41e9, vector_flops=128,
    matrix_flops=2048, matrix_flops_f32=1024, memory_rate=1.56e12,
)  # fmt: skip
# [N]; 989 TFLOP/s = 132 * 4096 * 1.83 GHz.
H100 = replace(
    A100, name="cuda:sm_90", arch="sm_90", chip="NVIDIA H100 SXM", compute_units=132,
    shared_per_block=227 * KB, shared_per_cu=228 * KB, l2=50 * MB, clock=1.83e9, vector_flops=256,
    matrix_flops=4096, matrix_flops_f32=2048, memory_rate=3.35e12,
)  # fmt: skip
# [N], Turing's white paper and T4's data sheet: 65 TFLOP/s = 40 * 1024 * 1.59 GHz. No copies to shared memory
# without registers, no matrix unit of bfloat16, and mma.sync in a shape of its own.
T4 = replace(
    A100, name="cuda:sm_75", arch="sm_75", chip="NVIDIA T4", compute_units=40, shared_per_block=64 * KB,
    shared_per_cu=64 * KB, most_waves=32, l2=4 * MB, clock=1.59e9, vector_flops=128, matrix_flops=1024,
    matrix_flops_f32=0, memory_rate=0.32e12, matrix_units=("wmma.m16n16k16.f16",), async_copy=False,
)  # fmt: skip
H200 = replace(H100, name="cuda:h200", chip="NVIDIA H200", l2=60 * MB, memory_rate=4.8e12)  # [N]

# TVM declares its AMDGPU kernels to LLVM as of at most 256 threads, without a GPU that it could ask; HIP
# source has no such limit.
LLVM_MOST_THREADS = 256
_CDNA2 = GpuTarget(
    "rocm:gfx90a", "rocm", "gfx90a", "AMD MI210", 104, 64, 64 * KB, 64 * KB, 128 * KB, 8, 32, 8 * MB, 1.7e9,
    128, 1024, 1.6e12, ("mfma.16x16x16", "mfma.32x32x8", "mfma.16x16x4", "mfma.32x32x2"),
    matrix_flops_f32=256, most_registers=512, most_threads=LLVM_MOST_THREADS,
)  # fmt: skip
MI210 = _CDNA2  # [R]: 45.3 TFLOP/s of float32 on the matrix units = 104 * 256 * 1.7 GHz
MI250X = replace(_CDNA2, name="rocm:mi250x", chip="AMD MI250X (one GCD)", compute_units=110)  # [R]
MI300X = replace(
    _CDNA2, name="rocm:gfx942", arch="gfx942", chip="AMD MI300X", compute_units=304, l2=4 * MB, clock=2.1e9,
    vector_flops=256, matrix_flops=2048, memory_rate=5.3e12, partitions=8,
)  # fmt: skip  # [R]
# [R]; a block sees 64 of the 128 KB of a workgroup processor, registers 192 KB x 4 SIMD32 per WGP.
RX7900XTX = GpuTarget(
    "rocm:gfx1100", "rocm", "gfx1100", "AMD RX 7900 XTX", 96, 32, 64 * KB, 64 * KB, 96 * KB, 24, 32, 6 * MB,
    2.5e9, 256, 512, 0.96e12, ("wmma.gfx11",), most_threads=LLVM_MOST_THREADS,
)  # fmt: skip

# [D]; the clock is inferred from 196 TFLOP/s with 1024 FLOP per clock (i), waves and step are gfx906's (i),
# the matrix units' float32 from a quarter of that, as on CDNA2 (i).
K100_AI = GpuTarget(
    "dcu:k100-ai", "hip", "gfx928", "Hygon K100-AI", 120, 64, 64 * KB, 64 * KB, 64 * KB, 4, 40, 8 * MB, 1.6e9,
    128, 1024, 0.896e12, ("mmac.16x16x16", "mmac.16x16x8"), matrix_flops_f32=256,
)  # fmt: skip
K100 = replace(
    K100_AI, name="dcu:k100", arch="gfx926", chip="Hygon K100", matrix_flops=0, matrix_flops_f32=0,
    matrix_units=(),
)  # fmt: skip  # [D]; L2 and memory are the K100-AI's (i)
Z100 = replace(
    K100, name="dcu:z100", arch="gfx906", chip="Hygon Z100", compute_units=60, l2=4 * MB, memory_rate=1.0e12
)  # Vega20's figures (i)
# [D]; 480 TFLOP/s and 1.6 TB/s are published, CUs (i), FLOP per clock and clock (i) follow from them.
BW200 = replace(
    K100_AI, name="dcu:bw200", arch="gfx936", chip="Hygon BW200", compute_units=80, clock=1.465e9,
    matrix_flops=4096, memory_rate=1.6e12,
)  # fmt: skip

# Any OpenCL 1.2 device: 32 KB of local memory and work-groups of 256 are what GPUs have in common.
OPENCL = GpuTarget(
    "opencl", "opencl", "", "any OpenCL device", 16, 32, 32 * KB, 32 * KB, 64 * KB, 8, 32, 2 * MB, 1.0e9,
    128, 0, 0.1e12, static_shared=32 * KB, most_threads=256,
)  # fmt: skip

# AMD's GPUs by HIP source and the vendor's compiler, where the machine with the GPU has ROCm.
_BY_HIP = tuple(
    replace(t, name=t.name.replace("rocm:", "hip:"), kind="hip", most_threads=1024)
    for t in (MI210, MI250X, MI300X, RX7900XTX)
)
_ALL = (
    T4, A100, H100, H200, MI210, MI250X, MI300X, RX7900XTX, *_BY_HIP, K100_AI, K100, Z100, BW200, OPENCL,
)  # fmt: skip
GPU_TARGETS: dict[str, GpuTarget] = {target.name: target for target in _ALL}


def find_target(name: str) -> GpuTarget:
    """The GPU of that name, e.g. "cuda:sm_90", "rocm:gfx942", "hip:gfx942", "dcu:k100-ai", "opencl".

    Raises:
        InputError: no such target; the text lists those there are.
    """
    target = GPU_TARGETS.get(name)
    if target is None:
        raise InputError(f"target {name!r} is not known; there are {', '.join(sorted(GPU_TARGETS))}")
    return target
