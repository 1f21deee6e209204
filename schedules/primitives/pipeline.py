"""Software pipelining of a tile loop: loads run `stages - 1` tiles ahead of the computation. Needs tvm.

    stages 1:           load to registers; barrier; store to shared; barrier; compute
    stages S, default:  tiles 0 .. S-2 are stored first; then per tile t
                        load t+S-1 to registers; compute t; store t+S-1; barrier
    stages S, async:    copies of tiles 0 .. S-2 are started first; then per tile t
                        wait for t; barrier; start the copy of t+S-1; compute t

Slot t % S of shared memory holds tile t. One barrier per tile suffices from two stages on: the slot that is
written was last read a tile before, and a barrier lies between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.script.builder import ir as T

from convopt.schedules.primitives.gpu_emit import barrier, when
from convopt.schedules.primitives.nest import minimum

Step = Callable[[Any], None]
Slot = Callable[[Any, Any], None]


def synchronous(count: Any, stages: int, load: Step, store: Step, compute: Step) -> None:
    """load(tile): to registers; store(slot): from them to shared memory; compute(slot)."""
    if stages == 1:
        with T.serial(0, count) as tile:
            load(tile)
            barrier()
            store(0)
            barrier()
            compute(0)
        return
    with T.serial(0, minimum(count, stages - 1)) as tile:
        load(tile)
        store(tile)
    barrier()
    with T.serial(0, count) as tile:
        ahead = tile + (stages - 1)
        with when(ahead < count):
            load(ahead)
        compute(tile % stages)
        with when(ahead < count):
            store(ahead % stages)
        barrier()


def asynchronous(count: Any, stages: int, copy: Slot, compute: Step) -> None:
    """copy(tile, slot) starts copies that `convopt_commit` closes as one group, at least two stages.

    Groups are committed for tiles beyond the end too, so that "all but the last S-2" always means tile t.
    """
    for tile in range(stages - 1):
        with when(tile < count if not isinstance(count, int) else None):
            if not isinstance(count, int) or tile < count:
                copy(tile, tile)
        commit()
    with T.serial(0, count) as tile:
        wait(stages - 2)
        barrier()
        ahead = tile + (stages - 1)
        with when(ahead < count):
            copy(ahead, ahead % stages)
        commit()
        compute(tile % stages)
    wait(0)


def commit() -> None:
    T.evaluate(T.call_extern("int32", "convopt_copy_commit"))


def wait(groups: int) -> None:
    """Until at most `groups` of the newest groups are under way."""
    T.evaluate(T.call_extern("int32", f"convopt_copy_wait_{groups}"))
