"""Kernel families compiled once, for sizes that are not known yet."""
