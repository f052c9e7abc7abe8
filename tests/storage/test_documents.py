"""What is stored comes back equal, to the last bit of a float."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.engine import Violation
from servetune.core.failure import Evidence, Failure, Phase, Repair, Verdict
from servetune.core.node import EnvRef, LaunchSpec, NodeFacts
from servetune.core.trial import Outcome, TrialState
from servetune.storage.documents import dump, load, load_optional, plain_text

texts = st.text(st.characters(exclude_categories=()), max_size=30)  # control characters and NUL too
fair_texts = st.text(max_size=30)  # pydantic refuses lone surrogates in a str field of a document
counts = st.integers(0, 2**53)
rates = st.floats(allow_nan=False)
values = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), fair_texts)
percentiles = st.builds(Percentiles, mean=rates, p50=rates, p90=rates, p95=rates, p99=rates)
latencies = st.none() | percentiles
measurements = st.builds(
    Measurement,
    concurrency=counts,
    output_tokens_per_s=rates,
    low=rates,
    high=rates,
    duration_s=rates,
    requests_completed=counts,
    requests_failed=counts,
    output_tokens=counts,
    ttft_s=latencies,
    tpot_s=latencies,
    itl_s=latencies,
    e2e_s=latencies,
    valid=st.booleans(),
    warnings=st.lists(fair_texts, max_size=3).map(tuple),
    details=st.dictionaries(fair_texts, rates, max_size=4),
)
words = fair_texts | st.builds(EnvRef, from_env=fair_texts)
launches = st.builds(
    LaunchSpec,
    argv=st.lists(words, max_size=6).map(tuple),
    env=st.dictionaries(fair_texts, words, max_size=4),
    port=st.integers(1, 65535),
    ready_path=fair_texts,
)
failures = st.builds(
    Failure,
    slug=fair_texts,
    phase=st.sampled_from(Phase),
    verdict=st.sampled_from(Verdict),
    message=fair_texts,
    deterministic=st.none() | st.booleans(),
    evidence=st.lists(st.builds(Evidence, line=counts, text=fair_texts), max_size=2).map(tuple),
    blamed=st.lists(fair_texts, max_size=2).map(tuple),
    repairs=st.lists(st.builds(Repair, flag=fair_texts, value=st.none() | values, reason=fair_texts), max_size=2).map(
        tuple
    ),
    confidence=st.floats(0, 1),
)
finite = st.floats(allow_nan=False, allow_infinity=False)
violations = st.builds(
    Violation, rule=fair_texts, layer=fair_texts, flags=st.lists(fair_texts, max_size=2).map(tuple), message=fair_texts
)
outcomes = st.builds(
    Outcome,
    state=st.sampled_from([state for state in TrialState if state.finished]),
    value=finite,
    levels=st.dictionaries(counts, finite, max_size=4),
    constraint=st.none() | finite,
    violations=st.lists(violations, max_size=2).map(tuple),
    duplicate_of=st.none() | counts,
    message=fair_texts,
)


@given(st.one_of(measurements, launches, failures, outcomes))
def test_a_model_comes_back_equal_from_portable_text(model):
    text = dump(model)
    assert text.isascii()
    assert "\0" not in text
    back = load(type(model), text)
    assert back == model
    assert repr(back) == repr(model)  # tells True from 1, and 8 from 8.0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_no_word_for_are_kept(number):
    facts = {"deep": [{"number": number}]}
    assert repr(json.loads(dump(facts))) == repr(facts)


def test_an_absent_document_stays_absent():
    assert load_optional(Failure, None) is None


def test_a_document_of_another_shape_is_refused():
    with pytest.raises(ValidationError, match="gpu_colour"):
        load(NodeFacts, '{"node": "local", "gpu_colour": "red"}')


@given(texts)
def test_plain_text_fits_every_database(text):
    plain = plain_text(text)
    assert "\0" not in plain
    plain.encode("utf-8")
    if "\0" not in text and text.isprintable():
        assert plain == text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"state": "running"}, "finished state"),
        ({"state": "complete"}, "has a value"),
        ({"state": "complete", "value": math.nan}, "finite"),
        ({"state": "pruned", "constraint": math.inf}, "finite"),
    ],
)
def test_an_outcome_that_cannot_be_told_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        Outcome.model_validate(fields)
