"""What keeps a configuration of the implicit GEMM from a problem or a chip, in words with the number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convopt.schedules.conv_problem import ConvProblem
from convopt.schedules.gpu_gemm_problem import GemmProblem
from convopt.schedules.primitives.matrix_tile import MatrixTile
from convopt.schedules.primitives.vector_width import ITEMSIZE
from convopt.targets.matrix_units import MATRIX_UNITS

if TYPE_CHECKING:
    from convopt.schedules.gpu_implicit_gemm import ImplicitGemm
    from convopt.targets import GpuTarget

DTYPES = ("float32", "float16", "bfloat16")
MOST_INDEX = 2**31 - 1  # indices are int32
ADDRESS_REGISTERS = 32  # per thread, roughly: addresses, loop counters, values on their way to shared memory
LOOP_REGISTERS = 32  # counters, bases of the operands, offsets and conditions under way
ROW_REGISTERS = 4  # of a row of A: its offset, where it lies along two padded dims, whether it exists


def registers(config: ImplicitGemm, problem: ConvProblem) -> int:
    """32-bit registers of a thread that the main kernel is compiled within, without spills.

    Accumulators and fragments, addresses, and tiles on their way to shared memory. ptxas was held to it for
    every tile form (see the test): it takes up to a tenth more where it may.
    """
    a, b = config.tiles(problem)
    moving = 0 if config.async_copy else (a.slots * a.vector + b.slots * b.vector) * ITEMSIZE[problem.x.dtype]
    addresses = a.slots * ROW_REGISTERS + b.slots + LOOP_REGISTERS
    return config.math(problem).registers + addresses + -(-moving // 4)


def most_registers(threads: int, target: GpuTarget) -> int:
    """That a thread may have in a block of so many."""
    share = target.registers_per_cu // threads
    return min(target.most_registers, share - share % target.register_step)


def why_not(config: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> str | None:
    c = config
    if isinstance(problem, GemmProblem) and problem.b.dtype != problem.x.dtype:
        return f"{problem.x.dtype} by {problem.b.dtype}"
    if problem.x.dtype not in DTYPES or problem.y.dtype not in DTYPES:
        return f"{problem.x.dtype} to {problem.y.dtype}"
    if c.block_m % c.part_m or c.block_n % c.part_n:
        return f"{c.part_m}x{c.part_n} does not divide {c.block_m}x{c.block_n}"
    if c.unit != "simt" and (refusal := _why_no_unit(c, problem, target)):
        return refusal
    math = c.math(problem)
    if any((c.block_k + pad) % math.vector for pad in c.pad[:2]):
        return f"rows padded by {c.pad[:2]} are no multiples of a read of {math.vector} elements"
    if c.through_shared and (c.block_n + c.pad[2]) % math.strip_step:
        return f"the epilogue's rows padded by {c.pad[2]} are no multiples of {math.strip_step} elements"
    if math.threads > target.most_threads or math.threads % target.wave:
        return f"{math.threads} threads, not a multiple of {target.wave} up to {target.most_threads}"
    if (needed := registers(c, problem)) > (most := most_registers(math.threads, target)):
        return f"about {needed} registers > {most}"
    if (shared := c.shared_bytes(problem, target)) > target.shared_per_block:
        return f"{shared} B shared > {target.shared_per_block}"
    if c.async_copy and (refusal := _why_no_copy(c, problem, target)):
        return refusal
    if refusal := c.parts(problem).why_not():
        return refusal
    n, reduction = c.padded_sizes(problem)
    largest = max(problem.x.reach, problem.y.reach, problem.groups * n * reduction)
    if max(largest, c.workspace_bytes(problem, target) // 4) > MOST_INDEX:
        return "more than 2^31 elements in an operand"
    if max(problem.groups, c.split_k) > 65535:
        return f"a grid of {problem.groups} groups and {c.split_k} parts, the most is 65535"
    return None


def _why_no_unit(c: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> str | None:
    if c.unit not in target.matrix_units:
        return f"{target.name} has no {c.unit}"
    unit = MATRIX_UNITS[c.unit]
    if problem.x.dtype not in unit.dtypes:
        return f"{c.unit} does not take {problem.x.dtype}"
    if not unit.takes(problem.x.dtype, problem.arithmetic):
        return f"{c.unit} multiplies in {unit.arithmetic}, which was not asked for"
    if unit.opaque and c.epilogue == "direct":
        return f"only {c.unit} itself knows which lane holds what: its sums go through shared memory"
    math = c.math(problem)
    return math.why_not() if isinstance(math, MatrixTile) else None


def _why_no_copy(c: ImplicitGemm, problem: ConvProblem, target: GpuTarget) -> str | None:
    if not target.async_copy:
        return f"{target.name} has no copies from global to shared memory"
    if c.stages < 2:
        return "asynchronous copies take two stages"
    widths = [t.store_vector * ITEMSIZE[problem.x.dtype] for t in c.tiles(problem)]
    return f"copies of {min(widths)} bytes, the least is 4" if min(widths) < 4 else None
