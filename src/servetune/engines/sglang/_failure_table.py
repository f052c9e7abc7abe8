"""The table of failure classes, loaded once from `failure_classes.yaml` and `failure_families.yaml`, compiled."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field

from servetune.core.failure import Phase, Verdict
from servetune.core.space import Frozen
from servetune.engines.sglang._advice_facts import checked
from servetune.engines.sglang._line_checks import CHECKS, Check

Strength = Literal["root", "warning", "secondary", "alive"]
Step = str | dict[str, Any]
When = Literal[
    "",
    "occupied",
    "autotuning",
    "big_allocation",
    "drafted",
    "cpu_pool",
    "placed",
    "named",
    "accused",
    "unaccused",
    "redundant",
    "nccl_environment",
]
#: One sentence, or several of which the first is said whose facts the deciding lines have.
Advice = Annotated[
    tuple[str, ...], BeforeValidator(lambda said: (said,) if isinstance(said, str) else said), AfterValidator(checked)
]


class Signature(Frozen):
    """One way in which a class shows; the fields are described at the top of the data file."""

    name: str
    text: str = ""
    not_text: str = ""
    frame: str = ""
    not_frame: str = ""
    seen_in: Literal["any", "exception", "line", "computed"] = "any"
    strength: Strength = "root"
    phases: tuple[Phase, ...] = ()
    phase: Phase | None = None
    order: int = 50
    when: When = ""
    check: Check = ""
    explained_by: str = ""
    beside: str = ""
    all_ranks: bool = False
    blame: tuple[str, ...] | Literal["auto"] = ()
    repair: tuple[Step, ...] = ()
    cause: str
    advice: Advice = ()
    verdict: Verdict | None = None
    unasked: Verdict | None = None
    deterministic: bool | Literal["class"] | None = "class"
    confidence: float = Field(default=0.9, ge=0, le=1)

    def matches(self, text: str, stack: str) -> re.Match[str] | None:
        """The match of `text`, when frames and exclusions agree."""
        if self.frame and not compiled(self.frame).search(stack):
            return None
        if self.not_frame and compiled(self.not_frame).search(stack):
            return None
        if self.not_text and compiled(self.not_text).search(text):
            return None
        match = compiled(self.text).search(text)
        return match if match is None or CHECKS[self.check](match, text) else None


class FailureClass(Frozen):
    """One class of the table."""

    slug: str = Field(alias="class")
    what: str
    verdict: Verdict
    deterministic: bool | None
    advice: Advice = ()
    signatures: tuple[Signature, ...]


class Entry(Frozen):
    """A signature with the class that it belongs to."""

    owner: FailureClass
    signature: Signature

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Entry:
        """Frozen: the state of a log reader may share it."""
        return self

    @property
    def quotes(self) -> bool:
        """Whether it is about the words of an answer, not about what is said of it."""
        return "answer" in compiled(self.signature.text).groupindex

    @property
    def verdict(self) -> Verdict:
        """Of the signature, else of the class."""
        return self.signature.verdict or self.owner.verdict

    @property
    def advice(self) -> tuple[str, ...]:
        """Of the signature, else of the class."""
        return self.signature.advice or self.owner.advice

    @property
    def deterministic(self) -> bool | None:
        """Of the signature, else of the class."""
        own = self.signature.deterministic
        return self.owner.deterministic if own == "class" else own


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compiled once; `^` and `$` match at every line of a stack."""
    return re.compile(pattern, re.M)


@cache
def classes() -> tuple[FailureClass, ...]:
    """Every class, in the order of the file, with the families of last resort behind its own signatures."""
    families = {entry["class"]: entry["signatures"] for entry in _data("failure_families.yaml")}
    found = _data("failure_classes.yaml")
    for one in found:
        one["signatures"] += families.pop(one["class"], [])
    assert not families, f"families of unknown classes: {sorted(families)}"
    return tuple(FailureClass.model_validate(one) for one in found)


def _data(name: str) -> list[dict[str, Any]]:
    text = resources.files("servetune.engines.sglang").joinpath(name).read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: list[dict[str, Any]] = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    return found


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Signatures tried on `exception`, `line` or `computed`, most specific first."""
    found = [Entry(owner=owner, signature=one) for owner in classes() for one in owner.signatures]
    wanted = (kind,) if kind == "computed" else (kind, "any")
    fitting = [entry for entry in found if entry.signature.seen_in in wanted]
    return tuple(sorted(fitting, key=lambda entry: entry.signature.order))


@cache
def entry(name: str) -> Entry:
    """The signature of that name."""
    return next(
        Entry(owner=owner, signature=one) for owner in classes() for one in owner.signatures if one.name == name
    )
