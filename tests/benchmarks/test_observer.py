"""The server's own counters, as real servers export them."""

import pytest

from servetune.benchmarks._observer import parse_loads, parse_metrics

#: Lines of SGLang 0.5.23.
SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 2.0
sglang:cuda_graph_passes_total{engine_type="unified",mode="prefill_none",model_name="m",tp_rank="0"} 66.0
sglang:cuda_graph_passes_total{engine_type="unified",mode="decode_none",model_name="m",tp_rank="0"} 96.0
sglang:cuda_graph_passes_total{engine_type="unified",mode="decode_full",model_name="m",tp_rank="0"} 4.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="m"} 8.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="true",model_name="m"} 3888.0
sglang:num_retracted_reqs{engine_type="unified",model_name="m",tp_rank="0"} 1.0
sglang:num_retracted_requests_total{engine_type="unified",model_name="m",tp_rank="0"} 5.0
sglang:is_cuda_graph{engine_type="unified",model_name="m",tp_rank="0"} 0.0
"""
VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:num_preemptions_total{engine="0",model_name="m"} NaN?
"""


def test_sglangs_metrics():
    assert parse_metrics(SGLANG) == {
        "running": 3.0,
        "queued": 2.0,
        "generated": 3896.0,
        "retracted": 5.0,
        "graph": 0.0,
        "decodes": 100.0,
        "eager_decodes": 96.0,
    }


def test_vllms_metrics():
    assert parse_metrics(VLLM) == {"running": 7.0, "queued": 1.0, "generated": 1.5e6}


@pytest.mark.parametrize("text", ["", "<html>no metrics</html>", "a b c\n{} 1\nx{ 3"])
def test_text_that_is_none(text):
    assert parse_metrics(text) == {}


def test_loads_of_data_parallel_ranks_are_added_up_once():
    rank = {"dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 1, "queues": {"waiting": 1}}
    ours = {"loads": [rank, {**rank, "dp_rank": 1, "num_running_reqs": 5}], "aggregate": {"num_running_reqs": 9}}
    assert parse_loads(ours) == {"running": 9.0, "queued": 2.0}
    assert parse_loads([rank]) == {"running": 4.0, "queued": 1.0}  # before 0.5.19
    assert parse_loads("nonsense") == parse_loads(None) == {}
