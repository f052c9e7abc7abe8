"""Quantities in words: numbers that are read by people, with their units and nouns."""

from __future__ import annotations

_HISSING = ("s", "x", "ch", "sh")


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`, `3 fresh launches`."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith(_HISSING) else 's'}"


def significant(value: float) -> str:
    """Three significant digits, all before the point where there are more, and never an exponent."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.6f}"


def latency(seconds: float) -> str:
    """`12.3 ms`, `1.59 s`."""
    return f"{significant(1e3 * seconds)} ms" if abs(seconds) < 0.9995 else f"{significant(seconds)} s"
