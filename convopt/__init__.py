"""convopt: a graph optimizer and kernel generator for convolutional networks."""

__version__ = "0.1.0"


def __getattr__(name):  # noqa: ANN001
    if name == "optimize":
        from convopt.compiler import optimize

        return optimize
    raise AttributeError(name)
