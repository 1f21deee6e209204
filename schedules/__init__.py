"""Kernel families: one per file; an instance of a schedule is one configuration of a kernel."""
