"""A Program as JSON values and back. Addresses are [space, index, offset], tensors [name, dtype, shape]."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from convopt.runtime.program import (
    Address,
    IslandStep,
    KernelStep,
    Launch,
    Placement,
    Program,
    Space,
    Step,
    TensorSpec,
)

SPACES = ("arena", "weights", "input", "output")
PLACES = ("compiled", "fallback", "view", "folded")


def to_json(program: Program) -> dict[str, Any]:
    """What `json.dumps` takes. `meta` must hold JSON values."""
    return {
        "inputs": [_spec(spec) for spec in program.inputs],
        "outputs": [_spec(spec) for spec in program.outputs],
        "arena_bytes": program.arena_bytes,
        "live_bytes": program.live_bytes,
        "steps": [_step(step) for step in program.steps],
        "placement": [asdict(place) for place in program.placement],
        "meta": program.meta,
    }


def from_json(data: Any) -> Program:
    """The Program of `to_json`. ValueError, with what is wrong, for anything else."""
    try:
        return Program(
            inputs=tuple(map(_to_spec, data["inputs"])),
            outputs=tuple(map(_to_spec, data["outputs"])),
            arena_bytes=_natural(data["arena_bytes"]),
            live_bytes=_natural(data["live_bytes"]),
            steps=tuple(map(_to_step, data["steps"])),
            placement=tuple(map(_to_placement, data["placement"])),
            meta=dict(data["meta"]),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a program: {type(error).__name__} {error}") from error


def _spec(spec: TensorSpec) -> list[Any]:
    return [spec.name, spec.dtype, list(spec.shape), spec.channels_last]


def _place(place: Address) -> list[Any]:
    return [place.space, place.index, place.offset]


def _step(step: Step) -> dict[str, Any]:
    common = {"nodes": list(step.nodes), "label": step.label}
    if isinstance(step, KernelStep):
        args = [_place(arg) for arg in step.args]
        own: dict[str, Any] = {"symbol": step.symbol, "args": args}
        if step.launch is not None:
            own |= {"binary": step.binary, "launch": asdict(step.launch)}
        else:
            own |= {"tasks": step.tasks, "scratch": step.scratch, "serial": step.serial}
        return {**own, **common}
    return {
        "model": step.model,
        "inputs": [[_spec(spec), _place(place)] for spec, place in step.inputs],
        "outputs": [[_spec(spec), _place(place)] for spec, place in step.outputs],
        **common,
    }


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"not a program: expected an integer, got {value!r}")
    return value


def _natural(value: Any) -> int:
    if _integer(value) < 0:
        raise ValueError(f"not a program: expected a size, got {value!r}")
    return cast(int, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a program: expected a text, got {value!r}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(_text, values))


def _to_spec(data: Any) -> TensorSpec:
    name, dtype, shape, channels_last = data
    return TensorSpec(_text(name), _text(dtype), tuple(map(_integer, shape)), channels_last is True)


def _to_place(data: Any) -> Address:
    space, index, offset = data
    if space not in SPACES:
        raise ValueError(f"not a program: {space!r} is no space of memory")
    return Address(cast(Space, space), _natural(index), _natural(offset))


def _to_tensor(data: Any) -> tuple[TensorSpec, Address]:
    spec, place = data
    return _to_spec(spec), _to_place(place)


def _to_step(data: Any) -> Step:
    nodes, label = _texts(data["nodes"]), _text(data["label"])
    if "launch" in data:
        return KernelStep(
            _text(data["symbol"]),
            tuple(map(_to_place, data["args"])),
            nodes=nodes,
            label=label,
            launch=_to_launch(data["launch"]),
            binary=_text(data["binary"]),
        )
    if "symbol" in data:
        return KernelStep(
            _text(data["symbol"]),
            tuple(map(_to_place, data["args"])),
            _natural(data["tasks"]),
            _natural(data["scratch"]),
            data["serial"] is True,
            nodes,
            label,
        )
    return IslandStep(
        _natural(data["model"]),
        tuple(map(_to_tensor, data["inputs"])),
        tuple(map(_to_tensor, data["outputs"])),
        nodes,
        label,
    )


def _to_launch(data: Any) -> Launch:
    return Launch(_to_extents(data["grid"]), _to_extents(data["block"]), _natural(data["shared"]))


def _to_extents(data: Any) -> tuple[int, int, int]:
    x, y, z = map(_natural, data)
    return x, y, z


def _to_placement(data: Any) -> Placement:
    where = data["where"]
    if where not in PLACES:
        raise ValueError(f"not a program: {where!r} is no placement")
    return Placement(_text(data["node"]), _text(data["op"]), where, _text(data["detail"]))
