"""How one convolution is computed, for every kind of target, and its form as JSON.

A plan is a schedule of the convolution itself, or im2col and a schedule of the products.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from convopt.selection.choose import CONV_FAMILIES
from convopt.selection.choose_gpu import GPU_CONV_FAMILIES

Algorithm = Literal["auto", "direct", "im2col"]
_ALL: tuple[type[Any], ...] = (*CONV_FAMILIES, *GPU_CONV_FAMILIES)
FAMILIES = {family.name: family for family in _ALL}


@dataclass(frozen=True)
class ConvPlan:
    """expand_col: images per unfolded matrix, whose products `schedule` computes; 0: no im2col."""

    schedule: Any
    expand_col: int = 0

    @property
    def text(self) -> str:
        """For people: `direct pixels=6 vectors=2`, `im2col of 4 images, direct pixels=6 vectors=2`."""
        config = " ".join(f"{name}={value}" for name, value in asdict(self.schedule).items())
        unfolded = f"im2col of {self.expand_col} images, " if self.expand_col else ""
        return f"{unfolded}{self.schedule.name} {config}"


def to_json(plan: ConvPlan) -> dict[str, Any]:
    """Plain values, for stores and reports; `from_json` reads them."""
    return {
        "family": plan.schedule.name,
        "config": asdict(plan.schedule),
        "expand_col": plan.expand_col,
    }


def from_json(data: Any) -> ConvPlan:
    """The plan of `to_json`. ValueError, with what is wrong, for anything else."""
    try:
        family = FAMILIES[data["family"]]
        config, expand_col = data["config"], data["expand_col"]
        wanted = {field.name for field in fields(family)}
        if config.keys() != wanted:
            raise ValueError(f"{family.name} has {sorted(wanted)}, not {sorted(config)}")
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items()}
        if not isinstance(expand_col, int) or expand_col < 0:
            raise ValueError(f"expand_col is {expand_col!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no plan: {error!r}") from error
    return ConvPlan(family(**values), expand_col)
