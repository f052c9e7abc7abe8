"""What crashes taught: for each kind of failure, how likely it is the fault of which value or pair of values.

A kind is phase and class. A launch that passed a phase clears its values, and its pairs of values, of failures in that
phase; a launch that failed in it accuses those that are left: at least one of them is guilty. Odds follow by belief
propagation over these statements (each an OR of its suspects), so that a suspect shared by several crashes, or left
alone, becomes certain, and one among many stays likely innocent. What an unsure diagnosis says may be chance: then the
launch would have failed whatever its values, and they become no more certain than it. Failures of memory are not
judged here: they have causes that add up (`_memory`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from servetune.search._grid import Codes, Grid
from servetune.search._history import OF_MEMORY, PHASES, Seen
from servetune.search.learning import CERTAIN

Floats = NDArray[np.float64]
#: A value (axis, index) or a pair of values (axis, index, axis, index).
Suspect = tuple[int, ...]

#: Chance that a value nobody has tried cannot work at all, and how many trials' worth that belief weighs.
NEW_VALUE, NEW_VALUE_WEIGHT = 0.25, 8.0
#: The same of a pair of values that each work.
NEW_PAIR = 0.008
#: A value of an ordered parameter is rarely what crashes, beside memory.
ORDERED = 0.08
#: In which phase values fail, as far as it is not known: most in those that try kernels and communication first.
SHARE = dict(zip(PHASES, (0.02, 0.22, 0.22, 0.04, 0.25, 0.08, 0.17, 0.0), strict=True))
#: Odds of suspects that the failure names, and of those that it does not name while it names others.
NAMED, UNNAMED = 4.0, 0.6
#: A class that says "combination": odds of pairs, and of single values.
COMBINATION, PAIR_SAID, SINGLE_UNSAID = "invalid_combo", 12.0, 0.4
MOST = 0.97
#: The same of failures under load: each costs a whole launch, so what probably causes one is not launched again.
MOST_UNDER_LOAD = 0.85
#: Log probability of what cannot be.
IMPOSSIBLE = -30.0


@dataclass(frozen=True)
class Blame:
    """A finding: with what probability `suspect` causes failures of this kind, and the trials that say so."""

    phase: str
    slug: str
    suspect: Suspect
    probability: float
    trials: tuple[int, ...]


class Feasibility:
    """Odds of every value and pair, from all that was launched. Small and built anew for each question."""

    def __init__(self, grid: Grid, seen: Sequence[Seen]) -> None:
        self._grid = grid
        self._plain = [axis.place is None for axis in grid.axes]
        self._single = [np.full(size, -1, dtype=np.int64) for size in grid.sizes]
        self._paired = {
            (p, q): np.full((grid.sizes[p], grid.sizes[q]), -1, dtype=np.int64)
            for p, q in combinations(range(len(grid.sizes)), 2)
            if self._plain[p] and self._plain[q]
        }
        self._clear(seen)
        self._doomed: dict[tuple[tuple[int, int], ...], float] = {}
        self.blames = self._blame(seen)
        self._single_log, self._pair_log = self._tables(seen)

    def log_probability(self, codes: Codes) -> Floats:
        """Row by row: log probability that no value and no pair makes the launch fail."""
        total = np.zeros(len(codes))
        for p, table in enumerate(self._single_log):
            total += np.append(table, 0.0)[codes[:, p]]
        for (p, q), padded in self._pair_log.items():
            total += padded[codes[:, p], codes[:, q]]
        for values, log_chance in self._doomed.items():
            rows = np.all([codes[:, axis] == value for axis, value in values], axis=0)
            total[rows] = np.minimum(total[rows], log_chance)
        return total

    def certain(self, codes: Codes, least: float = 0.98) -> Blame | None:
        """The finding that rules a point out, when there is one."""
        for blame in self.blames:
            s = blame.suspect
            if blame.probability >= least and all(codes[s[i]] == s[i + 1] for i in range(0, len(s), 2)):
                return blame
        return None

    def _clear(self, seen: Sequence[Seen]) -> None:
        """Every phase below the one in which a trial ended has been passed by its values and pairs."""
        if not seen:
            return
        codes, reached = np.array([t.codes for t in seen]), np.array([PHASES.index(t.phase) for t in seen])
        active = codes >= 0
        for p, table in enumerate(self._single):
            np.maximum.at(table, codes[active[:, p], p], reached[active[:, p]])
        for (p, q), pairs in self._paired.items():
            both = active[:, p] & active[:, q]
            np.maximum.at(pairs, (codes[both, p], codes[both, q]), reached[both])

    def _suspects(self, codes: Codes, phase: int) -> list[Suspect]:
        """Values and pairs of a failed launch that nothing has cleared of failures in `phase`."""
        singles: list[Suspect] = [(p, int(v)) for p, v in enumerate(codes) if v >= 0 and self._single[p][v] <= phase]
        pairs: list[Suspect] = [
            (p, int(codes[p]), q, int(codes[q]))
            for (p, q), reached in self._paired.items()
            if codes[p] >= 0 and codes[q] >= 0 and reached[codes[p], codes[q]] <= phase
        ]
        return singles + pairs

    def _blame(self, seen: Sequence[Seen]) -> tuple[Blame, ...]:
        kinds: dict[tuple[str, str], list[Seen]] = defaultdict(list)
        for trial in seen:
            if trial.slug is not None and trial.slug not in OF_MEMORY:
                kinds[trial.phase, trial.slug].append(trial)
        found: list[Blame] = []
        for (phase, slug), trials in kinds.items():
            crashes = [self._suspects(trial.codes, PHASES.index(phase)) for trial in trials]
            self._doom(trials, crashes)
            prior = self._prior(trials, crashes, phase, slug)
            chance = [_by_chance(trial, accused, prior) for trial, accused in zip(trials, crashes, strict=True)]
            for suspect, probability in propagated(crashes, prior, chance).items():
                told = [trial for trial, accused in zip(trials, crashes, strict=True) if suspect in accused]
                most = 1 - math.prod(_doubt(trial) for trial in told)
                numbers = tuple(trial.number for trial in told)
                found.append(Blame(phase, slug, suspect, min(most, probability), numbers))
        return tuple(sorted(found, key=lambda blame: -blame.probability))

    def _doom(self, trials: Sequence[Seen], crashes: Sequence[Sequence[Suspect]]) -> None:
        """A point that has all the suspects of one crash fails as surely as it was diagnosed, whichever is guilty."""
        for trial, accused in zip(trials, crashes, strict=True):
            axes = {axis for suspect in accused for axis in suspect[::2] if self._plain[axis]}
            if axes:
                values = tuple((axis, int(trial.codes[axis])) for axis in sorted(axes))
                doubt = _doubt(trial)
                log_doubt = math.log(doubt) if doubt > 0 else IMPOSSIBLE
                self._doomed[values] = max(IMPOSSIBLE, self._doomed.get(values, 0.0) + log_doubt)

    def _prior(
        self, trials: Sequence[Seen], crashes: Sequence[Sequence[Suspect]], phase: str, slug: str
    ) -> dict[Suspect, float]:
        prior: dict[Suspect, float] = {}
        for trial, accused in zip(trials, crashes, strict=True):
            named = {s: bool(trial.blamed & self._flags(s)) for s in accused}
            for suspect in accused:
                weight = 1.0 if not any(named.values()) else NAMED if named[suspect] else UNNAMED
                if slug == COMBINATION:
                    weight *= PAIR_SAID if len(suspect) == 4 else SINGLE_UNSAID
                prior[suspect] = min(0.5, self._chance(suspect) * SHARE[phase] * weight)
        return prior

    def _chance(self, suspect: Suspect) -> float:
        if len(suspect) == 4:
            return NEW_PAIR
        return NEW_VALUE if self._plain[suspect[0]] else NEW_VALUE * ORDERED

    def _flags(self, suspect: Suspect) -> set[str]:
        axes = self._grid.axes
        return {flag for i in range(0, len(suspect), 2) for flag in axes[suspect[i]].flags(suspect[i + 1])}

    def _tables(self, seen: Sequence[Seen]) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
        """Log probabilities of innocence: what is blamed, and what nobody has tried in the phases still ahead of it.

        Tables of pairs end with a row and a column of zeros, for parameters that are not active.
        """
        left = np.array([sum(SHARE[phase] for phase in PHASES[k:]) for k in range(len(PHASES))] + [1.0])
        chance = self._learned_chance(seen)
        scale = [chance if plain else chance * ORDERED for plain in self._plain]
        single = [np.log1p(-rate * left[table]) for rate, table in zip(scale, self._single, strict=True)]
        paired = {key: np.log1p(-NEW_PAIR * left[table]) for key, table in self._paired.items()}
        for blame in self.blames:
            most = MOST_UNDER_LOAD if blame.phase == "serving" else MOST
            innocent = np.log1p(-blame.probability) if blame.probability < most else IMPOSSIBLE
            if len(blame.suspect) == 2:
                single[blame.suspect[0]][blame.suspect[1]] += innocent
            else:
                p, v, q, w = blame.suspect
                paired[p, q][v, w] += innocent
        return single, {axes: np.pad(pairs, ((0, 1), (0, 1))) for axes, pairs in paired.items()}

    def _learned_chance(self, seen: Sequence[Seen]) -> float:
        """How many of the values that were tried turned out not to work, beginning with a belief."""
        own = next((trial.codes for trial in seen if trial.baseline), None)
        good = sum(
            int((table == len(PHASES) - 1).sum())
            - int(own is not None and own[p] >= 0 and table[own[p]] == len(PHASES) - 1)
            for p, table in enumerate(self._single)
            if self._plain[p]
        )
        bad = sum(b.probability for b in self.blames if len(b.suspect) == 2 and self._plain[b.suspect[0]])
        return (NEW_VALUE * NEW_VALUE_WEIGHT + bad) / (NEW_VALUE_WEIGHT + good + bad)


def _doubt(trial: Seen) -> float:
    """Chance that the values of a failed launch had no part in it."""
    return 0.0 if trial.confidence >= CERTAIN else 1 - trial.confidence


def _by_chance(trial: Seen, accused: Sequence[Suspect], prior: dict[Suspect, float]) -> float:
    """Chance that the launch fails without any guilty value: such that one crash leaves exactly its doubt."""
    innocent, doubt = math.prod(1 - prior[suspect] for suspect in accused), _doubt(trial)
    return min(1.0, (1 - innocent) / innocent * doubt / max(1e-9, 1 - doubt))


def propagated(
    crashes: Sequence[Sequence[Suspect]], prior: dict[Suspect, float], chance: Sequence[float] = (), rounds: int = 12
) -> dict[Suspect, float]:
    """Posterior of each suspect: in every crash at least one of the accused is guilty (loopy sum-product).

    `chance`, crash by crash: how likely it is without any of them; 0 where it is not said.
    """
    chance = chance or [0.0] * len(crashes)
    odds = {suspect: p / (1 - p) for suspect, p in prior.items()}
    ratio = [dict.fromkeys(accused, 1.0) for accused in crashes]
    for _ in range(rounds):
        total = dict(odds)
        for told in ratio:
            for suspect, r in told.items():
                total[suspect] *= r
        for told, by_chance in zip(ratio, chance, strict=True):
            guilty = {s: _probability(total[s] / told[s]) for s in told}
            for suspect in told:
                nobody_else = 1.0
                for other, p in guilty.items():
                    if other != suspect:
                        nobody_else *= 1 - p
                told[suspect] = 1 / max(1e-6, 1 - (1 - by_chance) * nobody_else)
    total = dict(odds)
    for told in ratio:
        for suspect, r in told.items():
            total[suspect] *= r
    return {suspect: _probability(value) for suspect, value in total.items()}


def _probability(odds: float) -> float:
    return odds / (1 + odds)
