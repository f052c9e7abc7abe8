"""Words for people: texts that are cut show it."""

from __future__ import annotations

ELLIPSIS = "…"
#: A word that is longer than this share of the limit is cut in its middle.
_LONGEST_WORD = 0.4


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of a text: what is left out begins with a whole word and is shown as `…`."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    if not text[limit - 1].isspace():
        cut = max(kept.rfind(" "), kept.rfind("\n"))
        kept = kept[:cut] if cut >= limit * (1 - _LONGEST_WORD) else kept
    return kept.rstrip() + ELLIPSIS
