"""The onnx package's own test data: node cases (made when their modules are imported), converted models."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

# The modules of onnx.backend.test.case.node whose operators convopt compiles, by kind.
CONVOLUTION = ("conv", "convtranspose")
POOLING = ("averagepool", "maxpool", "globalaveragepool", "globalmaxpool")
LINEAR = ("gemm", "matmul", "batch_normalization", "softmax", "logsoftmax")
REDUCTION = (
    *("reducel1", "reducel2", "reducemax", "reducemean", "reducemin", "reduceprod", "reducesum"),
    *("reducesumsquare", "reduce_log_sum", "reduce_log_sum_exp"),
)
MOVEMENT = (
    *("concat", "depthtospace", "expand", "flatten", "gather", "identity", "pad", "reshape", "shape", "size"),
    *("slice", "spacetodepth", "split", "squeeze", "tile", "transpose", "unsqueeze"),
)
RESAMPLING = ("resize", "upsample")
ELEMENTWISE = (
    *(
        "abs",
        "acos",
        "acosh",
        "add",
        "and_",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cast",
        "ceil",
        "celu",
        "clip",
    ),
    *("cos", "cosh", "div", "dropout", "elu", "equal", "erf", "exp", "floor", "gelu", "greater"),
    *("greater_or_equal", "hardsigmoid", "hardswish", "isinf", "isnan", "leakyrelu", "less", "less_or_equal"),
    *("log", "max", "mean", "min", "mish", "mod", "mul", "neg", "not_", "or_", "pow", "prelu", "reciprocal"),
    *("relu", "round", "selu", "shrink", "sigmoid", "sign", "sin", "sinh", "softplus", "softsign", "sqrt"),
    *("sub", "sum", "swish", "tan", "tanh", "thresholdedrelu", "where", "xor"),
)
COMPILED = (*CONVOLUTION, *POOLING, *LINEAR, *REDUCTION, *MOVEMENT, *RESAMPLING, *ELEMENTWISE)


@dataclass(frozen=True)
class Case:
    """A model, inputs in the model's order (absent optional ones left out), expected outputs, tolerances."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    outputs: tuple[np.ndarray, ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        return {node.op_type for node in self.model.graph.node}


def node_cases(*modules: str) -> tuple[Case, ...]:
    """The cases on numeric tensors that these modules of onnx.backend.test.case.node define."""
    return tuple(case for module in modules for case in _module_cases(module))


@cache
def _module_cases(module: str) -> tuple[Case, ...]:
    """The package's collect_testcases imports every module, most of whose seconds nothing here needs."""
    import onnx.backend.test.case.node as package

    before = len(package._NodeTestCases)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # overflow on purpose, in the modules' own arithmetic
        importlib.import_module(f"{package.__name__}.{module}")
    made = package._NodeTestCases[before:]
    return tuple(
        _case(test) for test in made if all(map(_numeric, [*test.data_sets[0][0], *test.data_sets[0][1]]))
    )


def _numeric(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biuf"


def _case(test: TestCase) -> Case:
    inputs, outputs = test.data_sets[0]
    names = [value.name for value in test.model.graph.input]
    return Case(
        test.name,
        test.model,
        {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)},
        tuple(np.asarray(value) for value in outputs),
        test.rtol,
        test.atol,
    )


def converted_cases() -> tuple[Case, ...]:
    """The models that were converted from PyTorch, which lie in the package as files."""
    root = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-converted"
    cases = []
    for folder in sorted(root.iterdir()):
        model = onnx.load(folder / "model.onnx")
        constants = {initializer.name for initializer in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in constants]
        data = folder / "test_data_set_0"
        inputs = {name: _tensor(data / f"input_{i}.pb") for i, name in enumerate(names)}
        outputs = tuple(_tensor(data / f"output_{i}.pb") for i in range(len(model.graph.output)))
        cases.append(Case(folder.name, model, inputs, outputs, 1e-3, 1e-5))
    return tuple(cases)


def _tensor(path: Path) -> np.ndarray:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)
