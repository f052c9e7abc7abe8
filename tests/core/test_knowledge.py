"""Learned constraints as data: what they cover, and when two say the same."""

import math

import pytest
from pydantic import ValidationError

from servetune.core.knowledge import Clause, LearnedConstraint, Lesson, Scope
from servetune.core.node import NodeFacts

FACTS = NodeFacts(
    node="gpu-1", gpu_names=("H20",) * 8, gpu_memory_bytes=96, engine_name="sglang", engine_version="0.5.9"
)


@pytest.mark.parametrize(
    ("clause", "value", "holds"),
    [
        ({"any_of": ["a", None]}, "a", True),
        ({"any_of": ["a", None]}, None, True),
        ({"any_of": ["a", None]}, "b", False),
        ({"any_of": [1]}, True, False),
        ({"any_of": [8]}, 8.0, True),
        ({"above": 0.827}, 0.83, True),
        ({"above": 0.827}, 0.827, False),
        ({"below": 4}, 3, True),
        ({"below": 4}, True, False),
        ({"below": 4}, None, False),
        ({"below": 4}, "3", False),
        ({"above": 1, "below": 4}, 2, True),
        ({"above": 1, "below": 4}, 4, False),
    ],
)
def test_what_a_clause_names(clause, value, holds):
    assignment = {} if value is None else {"flag": value}
    assert Clause(flag="flag", **clause).holds(assignment) is holds


@pytest.mark.parametrize("fields", [{}, {"any_of": [1], "above": 2}, {"above": math.nan}])
def test_a_clause_has_values_or_bounds(fields):
    with pytest.raises(ValidationError):
        Clause(flag="flag", **fields)


def test_a_constraint_covers_what_satisfies_every_clause():
    constraint = LearnedConstraint(
        slug="oom", forbids=(Clause(flag="tp", any_of=(8,)), Clause(flag="mem", above=0.9)), confidence=1
    )
    assert constraint.covers({"tp": 8, "mem": 0.95, "other": "x"})
    assert not constraint.covers({"tp": 8, "mem": 0.9})
    assert not constraint.covers({"mem": 0.95})
    assert not constraint.model_copy(update={"withdrawn": "it worked"}).covers({"tp": 8, "mem": 0.95})


@pytest.mark.parametrize(
    ("flag", "above", "said"),
    [
        ("mem-fraction-static", 0.9195, "mem-fraction-static ≥ 0.92"),
        ("cuda-graph-max-bs", 439, "cuda-graph-max-bs ≥ 440"),
        ("mem-fraction-static", 0.89, "mem-fraction-static above 0.89"),
        ("mem-fraction-static", 0.92478, "mem-fraction-static above 0.92478"),
    ],
)
def test_a_bound_reads_as_the_value_that_was_tried(flag, above, said):
    clause = Clause(flag=flag, above=above)
    assert clause.said() == said
    assert Clause(flag=flag, above=above, below=above + 9).said().startswith(f"{said} and below ")
    if "≥" in said:
        assert clause.holds({flag: type(above)(said.split()[-1])})


def test_a_constraint_forbids_something():
    with pytest.raises(ValidationError, match="forbids"):
        LearnedConstraint(slug="oom", forbids=(), confidence=1)


@pytest.mark.parametrize(
    ("scope", "covered"),
    [
        ({}, True),
        ({"engine": "sglang", "engine_version": "0.5.9", "gpu_count": 8, "model": "/m"}, True),
        ({"engine_version": "0.5.8"}, False),
        ({"gpu_count": 4}, False),
        ({"model": "/other"}, False),
        ({"compute_capability": "9.0"}, False),  # unknown here
    ],
)
def test_scopes(scope, covered):
    assert Scope(**scope).covers(FACTS, "/m") is covered


def test_a_key_is_of_what_is_said_not_of_who_said_it():
    clauses = (Clause(flag="tp", any_of=(8,)), Clause(flag="mem", above=0.9))
    one = LearnedConstraint(slug="oom", forbids=clauses, confidence=0.5)
    same = LearnedConstraint(slug="oom", forbids=clauses[::-1], confidence=1, lessons=(Lesson(study="s", trial=1),))
    other = LearnedConstraint(slug="oom", forbids=clauses, scope=Scope(gpu_count=8), confidence=0.5)
    assert one.key == same.key != other.key
