"""Agreement with SGLang's own parser and checks, recorded by `benchmarks/rules_against_engine.py --record`.

1,800 sampled configurations: three versions, three compute capabilities, eight models; and 1,000 on 25 other models
(`benchmarks/other_models`), which the rules had not seen when the first of them were asked about.
"""

import json
from pathlib import Path

import pytest
from engines.sglang.rule_cases import config, node, other_config

from servetune.engines.sglang.capabilities import capabilities_of
from servetune.engines.sglang.capabilities import violations as capability_violations
from servetune.engines.sglang.rules import judge

FOLDER = Path(__file__).parents[2] / "recordings" / "oracle"
OTHERS = sorted((FOLDER / "other_models").glob("*.jsonl"))
RECORDINGS = [*sorted(FOLDER.glob("*.jsonl")), *OTHERS]
AGREEING = 0.99
CAUGHT = 0.98


def _name(path):
    return path.stem if path.parent == FOLDER else f"{path.parent.name}-{path.stem}"


def judgements(path):
    with path.open() as file:
        head = json.loads(file.readline())
        lines = [json.loads(line) for line in file]
    version = head["engine_version"]
    facts = node(head["gpu"], head["gpus"], head["memory_mib"], head["compute_capability"])
    for line in lines:
        found = judge(line["assignment"], facts, version, (other_config if path in OTHERS else config)(line["model"]))
        refusing = [v for v in found.violations if v.layer == "rule"]
        refusing += capability_violations(line["assignment"], capabilities_of(version))
        engine = {**head["common"], **line["resolved"]} if line["ok"] else None
        yield line, refusing, engine, found.effective.resolved


def test_every_combination_is_recorded():
    assert (len(RECORDINGS), len(OTHERS)) == (18, 9)


@pytest.mark.parametrize("path", RECORDINGS, ids=_name)
def test_nothing_that_the_engine_accepts_is_refused(path):
    wrong = [
        (refusing[0].message, line["model"], line["assignment"])
        for line, refusing, *_ in judgements(path)
        if line["ok"] and refusing
    ]
    assert not wrong


@pytest.mark.parametrize("path", RECORDINGS, ids=_name)
def test_what_the_engine_refuses_is_refused(path):
    refused = [(line, refusing) for line, refusing, *_ in judgements(path) if not line["ok"]]
    missed = [(line["message"], line["model"], line["assignment"]) for line, refusing in refused if not refusing]
    assert len(refused) > (30 if path in OTHERS else 50)
    assert len(missed) <= (1 - CAUGHT) * len(refused), missed


@pytest.mark.parametrize("path", RECORDINGS, ids=_name)
def test_effective_configurations_agree(path):
    accepted = differing = 0
    examples = []
    for line, _, engine, resolved in judgements(path):
        if engine is not None:
            accepted += 1
            apart = {
                name: (value, resolved.get(name))
                for name, value in engine.items()
                if resolved.get(name) != (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value)
            }
            differing += bool(apart)
            examples += [(apart, line["model"], line["assignment"])] if apart else []
    assert accepted > (60 if path in OTHERS else 100)
    assert differing <= (1 - AGREEING) * accepted, examples
