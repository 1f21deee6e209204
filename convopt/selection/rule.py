"""Tile selection by rule, in the five steps of a published matrix-multiply method (CN114238853A).

A product of m x n x k is cut into blocks of block_m x block_n, where a block's side is the threads along it
times the tiles that each of them computes: block_m = threads_m * tiles_m. Symbols are those of claims 1 to 6;
a step says what it kept, what it dropped and why. Known to be blind to wave slots, to tails, to L2 and to the
reduction's length: `convopt.selection.model` knows these, and stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convopt.schedules.conv_problem import ConvProblem


@dataclass(frozen=True)
class Size:
    """A product's extents: m output pixels, n output channels, k the reduction."""

    m: int
    n: int
    k: int


def size_of(problem: ConvProblem) -> Size:
    """The product that the convolution is, of one group."""
    return Size(problem.pixels, problem.features, problem.taps * problem.channels)


@dataclass(frozen=True)
class Instance:
    """One block configuration as the rule sees it.

    config: what it stands for, a schedule's configuration. threads_m, threads_n: elements along a side that
    the threads of a block cover at once, one tile each: threads with plain multiply-adds, waves times the
    unit's tile with a matrix unit. threads, registers, shared: of a whole block; shared in bytes.
    """

    config: Any
    threads: int
    threads_m: int
    threads_n: int
    tiles_m: int
    tiles_n: int
    block_k: int
    registers: int
    shared: int

    @property
    def block_m(self) -> int:
        return self.threads_m * self.tiles_m

    @property
    def block_n(self) -> int:
        return self.threads_n * self.tiles_n

    @property
    def reuse(self) -> float:
        """Multiply-adds per element loaded: block_m*block_n*block_k / ((block_m+block_n)*block_k)."""
        return self.block_m * self.block_n / (self.block_m + self.block_n)

    def blocks(self, size: Size) -> int:
        return -(-size.m // self.block_m) * -(-size.n // self.block_n)

    @property
    def text(self) -> str:
        sides = f"{self.threads_m}x{self.threads_n} times {self.tiles_m}x{self.tiles_n}"
        return f"{self.block_m}x{self.block_n}x{self.block_k} ({sides})"


@dataclass(frozen=True)
class Machine:
    """What the steps ask of the hardware: a GPU's compute units, or a CPU's cores.

    threads: the most in a block. registers, shared: of a compute unit, in registers and bytes; shared_limit:
    bytes that one block may have. side: the least and the most threads along a side of a block with plain
    multiply-adds (16 and max/16 in claim 2), or None with a matrix unit, where `unit` is its tile (m, n), the
    least block. least_threads: active on a compute unit, below which registers cost too much. most_resident:
    blocks of a compute unit, 1 on a CPU's core. thread_registers: that one thread may have.
    """

    name: str
    compute_units: int
    threads: int
    registers: int
    shared: int
    shared_limit: int
    least_threads: int
    side: tuple[int, int] | None
    unit: tuple[int, int] = (1, 1)
    most_resident: int | None = None
    thread_registers: int | None = None

    def resident(self, instance: Instance) -> int:
        """block_per_cu = min(registers available / used, shared memory available / used), rounded down."""
        by_registers = self.by_registers(instance)
        return min(by_registers, self.shared // instance.shared) if instance.shared else by_registers

    def by_registers(self, instance: Instance) -> int:
        """Blocks on a compute unit as far as registers go."""
        blocks = self.registers // max(instance.registers, 1)
        return blocks if self.most_resident is None else min(blocks, self.most_resident)


@dataclass(frozen=True)
class Step:
    """What one step did; `dropped` says why, by instance."""

    number: int
    title: str
    kept: tuple[Instance, ...]
    dropped: Mapping[Instance, str]


@dataclass(frozen=True)
class Selection:
    """The five steps and what was left; `chosen` is the first of the last step in the order of step 1."""

    size: Size
    machine: Machine
    steps: tuple[Step, ...]

    @property
    def chosen(self) -> Instance:
        return self.steps[-1].kept[0]


def select(instances: Sequence[Instance], size: Size, machine: Machine) -> Selection:
    """All five steps.

    Raises:
        ValueError: the first two steps leave nothing; the text has the last reasons.
    """
    steps = [allowed(instances, machine)]
    steps.append(prefiltered(steps[-1].kept, machine))
    if not steps[-1].kept:
        reasons = {**steps[0].dropped, **steps[1].dropped}
        raise ValueError(
            f"no block configuration fits {machine.name}: {'; '.join(sorted(set(reasons.values())))}"
        )
    steps.append(filling(steps[-1].kept, size, machine))
    steps.append(most_reuse(steps[-1].kept))
    steps.append(fewest_launches(steps[-1].kept, size, machine))
    return Selection(size, machine, tuple(steps))


def allowed(instances: Sequence[Instance], machine: Machine) -> Step:
    """Step 1: every block configuration that the hardware allows."""

    def why_not(instance: Instance) -> str | None:
        if instance.threads > machine.threads:
            return f"{instance.threads} threads > {machine.threads}"
        if instance.shared > machine.shared_limit:
            return f"{instance.shared} B shared > {machine.shared_limit}"
        each = instance.registers // instance.threads
        if machine.thread_registers is not None and each > machine.thread_registers:
            return f"{each} registers of a thread > {machine.thread_registers}"
        if instance.registers > machine.registers:
            return f"{instance.registers} registers > {machine.registers}"
        return None

    return _filtered(1, "what the hardware allows", instances, why_not)


def prefiltered(instances: Sequence[Instance], machine: Machine) -> Step:
    """Step 2: enough reuse along both sides, and registers that leave enough threads active."""

    def why_not(instance: Instance) -> str | None:
        if machine.side is not None:
            low, high = machine.side
            for name, threads in (("m", instance.threads_m), ("n", instance.threads_n)):
                if not low <= threads <= high:
                    return f"{threads} threads along {name}, not {low} to {high}"
        elif instance.block_m < machine.unit[0] or instance.block_n < machine.unit[1]:
            return f"smaller than the matrix unit's {machine.unit[0]}x{machine.unit[1]}"
        active = machine.by_registers(instance) * instance.threads
        if active < machine.least_threads:
            return f"registers leave {active} threads active, fewer than {machine.least_threads}"
        return None

    return _filtered(2, "data reuse and active threads", instances, why_not)


def filling(instances: Sequence[Instance], size: Size, machine: Machine) -> Step:
    """Step 3: those with at least min_theory_block_num blocks, which occupy every compute unit.

    If none has, the product is too small: of each one tile a thread is kept, without reuse.
    """

    def why_not(instance: Instance) -> str | None:
        least = machine.compute_units * machine.resident(instance)
        if (blocks := instance.blocks(size)) < least:
            return f"{blocks} blocks < {least}, which fill the machine"
        return None

    step = _filtered(3, "blocks that fill the machine", instances, why_not)
    if step.kept:
        return step
    plain = tuple(i for i in instances if i.tiles_m == i.tiles_n == 1)
    # Where the listing has nothing without reuse, its smallest blocks are the nearest to it.
    least = min(i.block_m * i.block_n for i in instances)
    kept = plain or tuple(i for i in instances if i.block_m * i.block_n == least)
    dropped = {i: f"{step.dropped[i]}; too small a product for reuse" for i in instances if i not in kept}
    return Step(3, "too small to fill the machine: no reuse", kept, dropped)


def most_reuse(instances: Sequence[Instance]) -> Step:
    """Step 4: the largest ratio of arithmetic to memory accesses."""
    best = max(instance.reuse for instance in instances)

    def why_not(instance: Instance) -> str | None:
        return None if instance.reuse == best else f"ratio {instance.reuse:.1f} < {best:.1f}"

    return _filtered(4, "the largest ratio of arithmetic to memory", instances, why_not)


def fewest_launches(instances: Sequence[Instance], size: Size, machine: Machine) -> Step:
    """Step 5: the fewest rounds of blocks, ceil(blocks / (block_per_cu * compute units))."""

    def rounds(instance: Instance) -> int:
        return -(-instance.blocks(size) // max(1, machine.resident(instance) * machine.compute_units))

    best = min(rounds(instance) for instance in instances)

    def why_not(instance: Instance) -> str | None:
        return None if rounds(instance) == best else f"{rounds(instance)} rounds > {best}"

    return _filtered(5, "the fewest rounds of blocks", instances, why_not)


def _filtered(
    number: int, title: str, instances: Sequence[Instance], why_not: Callable[[Instance], str | None]
) -> Step:
    reasons = {instance: why_not(instance) for instance in instances}
    return Step(
        number,
        title,
        tuple(instance for instance in instances if reasons[instance] is None),
        {instance: reason for instance, reason in reasons.items() if reason is not None},
    )
