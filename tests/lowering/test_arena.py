"""The arena's plan: nothing that is alive shares memory, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convopt.lowering.arena import ALIGNMENT, Buffer, live_bytes, plan


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    count = draw(st.integers(0, 40))
    result = []
    for _ in range(count):
        first = draw(st.integers(0, 30))
        nbytes = draw(st.one_of(st.integers(0, 70), st.integers(0, 1 << 20)))
        result.append(Buffer(nbytes, first, first + draw(st.integers(0, 12))))
    return result


@given(buffers())
def test_what_is_alive_does_not_overlap(given_: list[Buffer]) -> None:
    size = plan(given_)
    for a in given_:
        assert a.offset % ALIGNMENT == 0
        assert a.offset >= 0 and a.offset + a.nbytes <= size
    for i, a in enumerate(given_):
        for b in given_[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not together, (a, b)


@given(buffers())
def test_live_bytes_is_the_peak(given_: list[Buffer]) -> None:
    """Counted step by step; a plan is at least as large."""
    peak = max((sum(b.nbytes for b in given_ if b.first <= t <= b.last) for t in range(60)), default=0)
    assert live_bytes(given_) == peak
    assert plan(given_) >= peak


def test_memory_is_used_again() -> None:
    chain = [Buffer(1000, step, step + 1) for step in range(10)]
    assert plan(chain) == 2 * 1024
    assert plan([]) == 0
    assert (
        plan([Buffer(0, 0, 3), Buffer(0, 1, 2)]) == 2 * ALIGNMENT
    )  # empty values have addresses of their own
