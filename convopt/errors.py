"""The errors raised on purpose. Each text names the file, node or input and what was expected."""

from typing import ClassVar


class ConvoptError(Exception):
    """Base of all: the command line prints its text and exits with `exit_status`.

    2: the arguments, the model or the input; 3: this machine lacks the device or the compiler.
    """

    exit_status: ClassVar[int] = 2


class ModelError(ConvoptError):
    """The model itself is unusable: not ONNX, truncated, cyclic, contradictory."""


class InputError(ConvoptError):
    """An argument or an input array doesn't fit: unknown name, dtype, rank or shape."""


class ArtifactError(ConvoptError):
    """A saved artifact is damaged, of another version or for another machine."""


class CompileError(ConvoptError):
    """A kernel could not be compiled; names the kernel and what the compiler said."""


class CompilerMissing(CompileError):
    """No compiler for the target is on this machine; with the remedy."""

    exit_status = 3


class ExecutionError(ConvoptError):
    """A part of the model that onnxruntime computes failed on these inputs; names its nodes."""


class DeviceMissing(ExecutionError):
    """The target's device, its driver or its library is not on this machine; with the remedy."""

    exit_status = 3


class VerificationError(ConvoptError):
    """The compiled module's result differs from the reference (verify="raise")."""
