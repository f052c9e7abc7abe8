"""A study with the adaptive sampler that is interrupted goes on as if it had not been."""

import pytest

from servetune import plugins
from servetune.cli._virtual_study import virtual_spec
from servetune.core.events import Silent, Step
from servetune.core.study import NamedChoice
from servetune.simulation.scenario import load_scenario
from servetune.storage import StudyStore
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

PLACE = "generated-12"


class StopsAt(Silent):
    """Interrupts the tuner when a trial, or the first after it that does, comes to a step."""

    def __init__(self, name, trial):
        self.name, self.trial = name, trial

    def on(self, event):
        if isinstance(event, Step) and (event.trial or 0) >= self.trial and event.name == self.name:
            raise KeyboardInterrupt


def run(store, spec, listener):
    return run_study(spec, store, listener, StopRequest(), probe=plugins.load("nodes", "virtual").probe)


@pytest.mark.parametrize(("step", "trial"), [("launching", 3), ("measuring:256", 2), ("telling", 4)])
def test_interrupted_and_resumed_it_proposes_the_same(tmp_path, step, trial):
    scenario = load_scenario(PLACE)
    spec = virtual_spec(scenario, PLACE, sampler=NamedChoice(name="adaptive"), seed=1, node_hours=100.0)
    spec = spec.model_copy(
        update={
            "budget": spec.budget.model_copy(update={"trials": 7}),
            "confirm": spec.confirm.model_copy(update={"top": 0}),
        }
    )
    told = []
    for name in ("whole", "interrupted"):
        with StudyStore.open(f"sqlite:///{tmp_path / name}.db") as store:
            store.create_study(spec, "")
            if name == "interrupted":
                with pytest.raises(KeyboardInterrupt):
                    run(store, spec, StopsAt(step, trial))
            run(store, spec, Silent())
            told.append([(t.number, t.state, dict(t.assignment), t.value) for t in store.trials(spec.study)])
    assert told[0] == told[1]
