"""Which values explain crashes: the smallest set that every crash of a kind has and nothing that worked has.

A launch that came further than a crash clears what it shares with it. What is left are hypotheses: values of one
parameter, or pairs where every single value is cleared. What the log names goes before what is only left over. A crash
with one hypothesis is explained; several crashes of one kind are, by the one hypothesis that they share.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from servetune.core.failure import Failure
from servetune.core.space import Choice
from servetune.search.launched import Launched, Setting, chooses_kernels, has, settled

Hypothesis = frozenset[Setting]
#: The class that says "combination".
COMBINATION = "invalid_combo"
#: What a value does not go with is no other flag: the model, or what it runs on. A constraint's scope has these anyway.
_NO_FLAG = re.compile(
    r"(?i)\b(?:support(?:s|ed)?|available|implemented|compatible|works?|allowed)\b[^.;\n]{0,30}\b(?:with|for|by|on|in)"
    r" (?:this|the|your|the current|current) (?:\w+ )?(?:model|architecture|checkpoint|gpu|device|platform|hardware)\b"
    r"(?! (?:runner|executor|parallel|loader|backend|dtype|config))"
)
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Explanation:
    """`core` explains `crashes`. `context`: what they had in common besides, that may have a part in it.

    `named`: the logs name it; else it is what is left when everything that works is taken away.
    """

    core: Hypothesis
    context: Hypothesis
    crashes: tuple[Launched, ...]
    named: bool


@dataclass(frozen=True)
class Suspicion:
    """A crash that is not explained: one of these is guilty."""

    crash: Launched
    hypotheses: tuple[Hypothesis, ...]

    def postpones(self, values: Mapping[str, Choice]) -> bool:
        """Whether a configuration (every flag in effect) has several of the hypotheses: it would not tell which."""
        settings = settled(values)
        return sum(has(settings, hypothesis) for hypothesis in self.hypotheses) > 1


class Explainer:
    """Explains the crashes among `launches`, in terms of the categorical parameters `flags` (name → flags)."""

    def __init__(self, launches: Sequence[Launched], flags: Mapping[str, tuple[str, ...]]) -> None:
        self._furthest_first = sorted(launches, key=lambda one: -one.reached)
        self._flags = flags
        self._reached: dict[Hypothesis, int] = {}

    def explain(self, crashes: Sequence[Launched]) -> tuple[list[Explanation], list[Suspicion]]:
        """Explanations, and what stays unexplained, of crashes of any kind."""
        kinds: dict[tuple[str, ...], list[Launched]] = defaultdict(list)
        for crash in crashes:
            assert crash.crash is not None
            kinds[kind_of(crash.crash)].append(crash)
        found: list[Explanation] = []
        open_: list[Suspicion] = []
        for alike in kinds.values():
            explained, left = self._jointly(alike)
            found += explained
            open_ += left
        return found, open_

    def _jointly(self, alike: Sequence[Launched]) -> tuple[list[Explanation], list[Suspicion]]:
        told = {id(crash): self._hypotheses(crash) for crash in alike}
        left = [crash for crash in alike if told[id(crash)]]
        cores: dict[Hypothesis, list[Launched]] = {}
        for crash in left:
            if len(told[id(crash)]) == 1:
                cores.setdefault(told[id(crash)][0], [])
        while True:
            for core, explained in cores.items():
                explained += [crash for crash in left if core in told[id(crash)]]
                left = [crash for crash in left if crash not in explained]
            shared = _most_shared(left, [told[id(crash)] for crash in left])
            if shared is None:
                break
            cores[shared] = []
        found = [self._explanation(core, crashes) for core, crashes in cores.items() if crashes]
        return found, [Suspicion(crash, tuple(told[id(crash)])) for crash in left]

    def _explanation(self, core: Hypothesis, crashes: Sequence[Launched]) -> Explanation:
        named = all(self._named(crash) for crash in crashes)
        first = crashes[0].crash
        assert first is not None
        combination = first.slug == COMBINATION and not (named and all(map(_speaks_of_no_flag, crashes)))
        alone = len({crash.trial for crash in crashes}) == 1
        context: Hypothesis = frozenset()
        if len(self._parameters(core)) == 1 and (combination or (alone and not named)):
            context = frozenset.intersection(*(self._partners(crash, core) for crash in crashes))
        return Explanation(core, context, tuple(crashes), named)

    def _partners(self, crash: Launched, core: Hypothesis) -> Hypothesis:
        """Values of other parameters that choose kernels, where the core chooses one too."""
        own = {flag for flag, _ in core}
        if not any(map(chooses_kernels, own)):
            return frozenset()
        others = [flag for flags in self._flags.values() for flag in flags if flag not in own and chooses_kernels(flag)]
        return frozenset((flag, crash.settings[flag]) for flag in others if flag in crash.settings)

    def _hypotheses(self, crash: Launched) -> list[Hypothesis]:
        """What may be guilty, smallest first; empty when everything about it has worked before."""
        named = self._named(crash)
        if named:
            return self._of_the_named(crash, named)
        singles = [alive for flags in self._flags.values() if (alive := self._suspected(crash, flags))]
        return singles or self._pairs(crash, None)

    def _named(self, crash: Launched) -> list[Hypothesis]:
        """Values of the parameters that the log names."""
        assert crash.crash is not None
        wanted = set(crash.crash.named) if crash.crash.confidence > 0.5 else set()
        named = [[flag for flag in flags if flag in wanted] for flags in self._flags.values()]
        return [frozenset((flag, crash.settings.get(flag)) for flag in flags) for flags in named if flags]

    def _of_the_named(self, crash: Launched, named: Sequence[Hypothesis]) -> list[Hypothesis]:
        """All that is named together, when that has not worked; else one of it with something else."""
        together: Hypothesis = frozenset().union(*named)
        if self._alive(together, crash):
            return [together]
        return self._pairs(crash, together)

    def _pairs(self, crash: Launched, one_of: Hypothesis | None) -> list[Hypothesis]:
        whole = {
            name: frozenset((flag, crash.settings.get(flag)) for flag in flags) for name, flags in self._flags.items()
        }
        pairs = [whole[one] | whole[other] for one, other in combinations(whole, 2)]
        if one_of is not None:
            pairs = [pair for pair in pairs if one_of & pair]
        return [pair for pair in pairs if self._alive(pair, crash)]

    def _suspected(self, crash: Launched, flags: Sequence[str]) -> Hypothesis:
        """The flags of one parameter whose values have not worked, or all of them where only together they have not."""
        settings = [(flag, crash.settings.get(flag)) for flag in flags]
        alone = frozenset(one for one in settings if self._alive(frozenset((one,)), crash))
        if alone:
            return alone
        whole = frozenset(settings)
        return whole if self._alive(whole, crash) else frozenset()

    def _alive(self, hypothesis: Hypothesis, crash: Launched) -> bool:
        if hypothesis not in self._reached:
            self._reached[hypothesis] = next((o.reached for o in self._furthest_first if o.has(hypothesis)), -1)
        return self._reached[hypothesis] <= crash.reached

    def _parameters(self, core: Hypothesis) -> set[str]:
        own = {flag for flag, _ in core}
        return {name for name, flags in self._flags.items() if own & set(flags)}


def kind_of(failure: Failure) -> tuple[str, ...]:
    """Class, phase, and the deciding line without its numbers: crashes of one kind may have one cause."""
    line = failure.evidence[0].text if failure.evidence and failure.slug != "wrong_output" else ""
    return failure.slug, failure.phase.value, _CHANGING.sub("#", line)[:200]


def _speaks_of_no_flag(crash: Launched) -> bool:
    """Whether the log says that a value does not go with the model or the GPU."""
    return crash.crash is not None and any(_NO_FLAG.search(one.text) for one in crash.crash.evidence[:1])


def _most_shared(crashes: Sequence[Launched], told: Sequence[Sequence[Hypothesis]]) -> Hypothesis | None:
    """The hypothesis that most crashes share, at least two, when no other one is shared by two of them.

    One that no log suspects, in crashes that each have something suspected of their own, needs three.
    """
    members: dict[Hypothesis, set[int]] = defaultdict(set)
    for index, hypotheses in enumerate(told):
        for hypothesis in hypotheses:
            members[hypothesis].add(index)
    suspected = [
        [h for h in hypotheses if _is_suspected(h, crash)] for crash, hypotheses in zip(crashes, told, strict=True)
    ]

    def rank(hypothesis: Hypothesis) -> tuple[int, int, str]:
        mine = members[hypothesis]
        return -len(mine), -sum(hypothesis in suspected[index] for index in mine), str(sorted(hypothesis, key=str))

    for hypothesis in sorted(members, key=rank):
        mine = members[hypothesis]
        others = any(len(mine & other) > 1 for which, other in members.items() if which != hypothesis)
        elsewhere = all(suspected[index] and hypothesis not in suspected[index] for index in mine)
        if len(mine) >= (3 if elsewhere else 2) and not others:
            return hypothesis
    return None


def _is_suspected(hypothesis: Hypothesis, crash: Launched) -> bool:
    return crash.crash is not None and any(flag in crash.crash.blamed for flag, _ in hypothesis)
