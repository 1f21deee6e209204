"""convopt: a graph optimizer and kernel generator for convolutional networks."""

__version__ = "0.1.0"
