"""Measuring convopt beside its peers: engines run in turn, results as plain data."""
