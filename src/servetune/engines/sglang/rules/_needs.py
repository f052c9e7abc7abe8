"""How a line of the tables in `needs*.py` becomes a rule: a flag that needs something, and when it goes without."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

Wrong = Callable[[State], bool]


class Need(NamedTuple):
    """Refused where `flag` is named and `wrong` holds; `needs` completes the sentence "--flag needs …".

    `others`: the flags that take part in it. `key`: the rule's id, where a flag has several.
    """

    flag: str
    wrong: Wrong
    needs: str
    others: tuple[str, ...] = ()
    key: str = ""


def register(source: str, since: str, needs: tuple[Need, ...], until: str | None = None) -> None:
    """One rule for each; they cost nothing where their flag is not named. Raises ValueError for an id used twice."""
    for need in needs:
        rule(
            f"needs.{need.key or need.flag}",
            Stage.CACHE,
            source=source,
            since=since,
            until=until,
            named=need.flag,
        )(_check(need))


def _check(need: Need) -> Callable[[State], Effects]:
    sentence = f"--{need.flag.replace('_', '-')} needs {need.needs}"

    def check(s: State) -> Effects:
        named = s.user.get(need.flag)
        if named is not None and named is not False and need.wrong(s):
            yield Refuse(
                sentence, (need.flag, *need.others), (need.needs, f"leave out --{need.flag.replace('_', '-')}")
            )

    check.__doc__ = f"{sentence}."
    return check


def below(name: str, least: float) -> Wrong:
    """The number is under a bound."""
    return lambda s: number(s, name) is not None and (number(s, name) or 0) < least


def number(s: State, name: str) -> float | None:
    """A flag's number; None for one that is not given, or is no number (the parser refuses it)."""
    value = s.user.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def without(name: str) -> Wrong:
    """The other flag is missing."""
    return lambda s: not s.user.get(name)


def beside(name: str) -> Wrong:
    """The other flag is there."""
    return lambda s: bool(s.user.get(name))


def other_model(names: frozenset[str]) -> Wrong:
    """The model is known, and none of these architectures."""
    return lambda s: s.model.known and s.model.architecture not in names


def with_role(s: State) -> bool:
    """The server is one of a disaggregated pair."""
    return bool(s.disaggregation_mode != "null")
