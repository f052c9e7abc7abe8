"""Times in the database: ISO 8601 in UTC with milliseconds, so that text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def now() -> str:
    """Time of this machine's clock, e.g. `2026-11-29T17:30:31.042Z`."""
    return _text(datetime.now(UTC))


def after(time: str | None) -> str:
    """Time of this machine's clock, or one millisecond after `time` where the clock was set back."""
    read = now()
    return read if time is None or read > time else later(time, 0.001)


def later(time: str, delay_s: float) -> str:
    """`time` plus `delay_s` seconds."""
    return _text(datetime.fromisoformat(time) + timedelta(seconds=delay_s))


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
