"""Choosing schedules by measurement, and remembering what was measured."""
