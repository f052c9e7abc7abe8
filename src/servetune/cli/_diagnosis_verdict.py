"""What a verdict means, in one sentence that claims no more than is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Confidence from which on a cause is taken for the cause.
SURE = 0.7
#: Verdict → whether the same command fails again → the sentence, for a cause that is sure and for one that is not.
_SENTENCES: Mapping[str, Mapping[bool | None, tuple[str, str]]] = {
    "infeasible": {
        True: (
            "this configuration cannot work here; the same command would fail again",
            "this configuration probably cannot work here; the same command would then fail again",
        ),
        False: (
            "this configuration failed here, though the same command may pass",
            "this configuration failed here, though the same command may pass; the cause is not certain",
        ),
        None: (
            "this configuration failed here; whether the same command would fail again is not known",
            "this configuration failed here; neither the cause is certain nor whether it would fail again",
        ),
    },
    "retry": {
        True: (
            "the same command would fail again as things are; try it again when the cause is removed",
            "the same command would probably fail again as things are; try it again when the cause is removed",
        ),
        False: (
            "the same command may pass when tried again",
            "the same command may pass when tried again; the cause is not certain",
        ),
        None: (
            "may pass when tried again; whether it would fail again is not known",
            "may pass when tried again; neither the cause is certain nor whether it would fail again",
        ),
    },
    "stop": {
        True: (
            "the node needs a person; until then the same command would fail again",
            "the node probably needs a person; until then the same command would fail again",
        ),
        False: (
            "the node needs a person, though the same command may pass",
            "the node probably needs a person, though the same command may pass",
        ),
        None: (
            "the node needs a person; whether the same command would fail again is not known",
            "the node probably needs a person; whether the same command would fail again is not known",
        ),
    },
}


def verdict_sentence(report: Mapping[str, Any]) -> str:
    """The sentence for a report's verdict, determinism, confidence and repairs."""
    if report["verdict"] == "none":
        return _alive(report["class"], bool(report["repair"]))
    sure, unsure = _SENTENCES[report["verdict"]][report["deterministic"]]
    return sure if report["confidence"] >= SURE else unsure


def _alive(slug: str, repairs: bool) -> str:
    """Of a server that is alive."""
    if slug == "overload":
        more = "; what is listed below may help too" if repairs else ", not the configuration"
        return f"the server works; mend the load{more}"
    return (
        "the server works, and the change below may make it better"
        if repairs
        else "the server works; nothing to change"
    )
