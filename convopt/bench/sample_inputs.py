"""Inputs that the real models are well-conditioned for: an error relative to them means something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convopt.bench.real_models import MODELS

Array = np.ndarray[Any, Any]

GLYPHS = (
    ("01110", "10001", "10001", "11111", "10001", "10001", "10001"),  # A
    ("11110", "10001", "11110", "10001", "10001", "10001", "11110"),  # B
    ("01111", "10000", "10000", "10000", "10000", "10000", "01111"),  # C
    ("11111", "10000", "11110", "10000", "10000", "10000", "11111"),  # E
    ("10001", "10001", "11111", "10001", "10001", "10001", "10001"),  # H
    ("11111", "00100", "00100", "00100", "00100", "00100", "00100"),  # T
)


def sample_inputs(name: str, variant: int = 0) -> dict[str, Array]:
    """Inputs at the model's first or second shapes, float32 in [-1, 1].

    The text detector gets a printed page: its answer to noise is zero everywhere. The music model gets
    chords: it takes the logarithm of its spectrum, and where that comes close to zero, as it does for noise,
    every engine is 1e-3 from float64. The others get uniform noise.
    """
    shapes = MODELS[name].shapes[variant]
    if name in SIGNALS:
        return {key: SIGNALS[name](shape) for key, shape in shapes.items()}
    rng = np.random.default_rng(variant)
    return {key: rng.uniform(-1, 1, shape).astype(np.float32) for key, shape in shapes.items()}


def page(shape: tuple[int, ...]) -> Array:
    """Images [N, C, H, W] of dark letters (-1), 21 pixels high, in lines on a white (1) ground."""
    letters = [np.kron(np.array([list(map(int, row)) for row in glyph]), np.ones((3, 3))) for glyph in GLYPHS]
    image = np.ones(shape, np.float32)
    for line, top in enumerate(range(24, shape[2] - 45, 56)):
        for place, left in enumerate(range(24, shape[3] - 39, 18)):
            if place % 7 != 6:  # a space between words
                image[:, :, top : top + 21, left : left + 15] -= (
                    2 * letters[(3 * line + place) % len(letters)]
                )
    return image


def chords(shape: tuple[int, ...]) -> Array:
    """Audio [N, samples, 1] at 22050 Hz: each of the batch a chord of decaying harmonics, over noise."""
    time = np.arange(shape[1]) / 22050.0
    audio = np.random.default_rng(0).normal(scale=0.05, size=shape)
    for n in range(shape[0]):
        for note in (220.0 * 2 ** (n / 12), 277.18, 329.63):
            for harmonic in range(1, 6):
                audio[n, :, 0] += 0.15 / harmonic * np.sin(2 * np.pi * note * harmonic * time) * np.exp(-time)
    return audio.clip(-1, 1).astype(np.float32)


SIGNALS: dict[str, Callable[[tuple[int, ...]], Array]] = {"det": page, "nmp": chords}
