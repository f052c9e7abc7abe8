#!/usr/bin/env python
"""Stands in for `python -m sglang.bench_serving`: a plain closed loop that writes a report of the same shape."""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx


def main() -> int:
    assert sys.argv[1:3] == ["-m", "sglang.bench_serving"], sys.argv
    parser = argparse.ArgumentParser()
    for name in ("backend", "base-url", "model", "dataset-name", "random-range-ratio", "output-file", "seed"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("random-input-len", "random-output-len", "num-prompts", "max-concurrency"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("tokenize-prompt", "output-details", "disable-tqdm"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--header", nargs="+", action="extend", default=[])
    options = parser.parse_args(sys.argv[3:])
    headers = dict(text.split("=", 1) for text in options.header)
    if "FAKE_DIES" in os.environ:
        print("no module named sglang", file=sys.stderr)
        return 3

    client = httpx.Client(headers=headers, timeout=30, verify=False)

    def ask(number: int) -> dict:
        sampling = {"temperature": 0, "max_new_tokens": options.random_output_len, "ignore_eos": True}
        body = {"input_ids": [number] * options.random_input_len, "sampling_params": sampling, "stream": True}
        begin = last = time.monotonic()
        found = {"ttft": 0.0, "itl": [], "output_len": 0, "error": ""}
        with client.stream("POST", f"{options.base_url}/generate", json=body) as answer:
            if answer.status_code != 200:
                return {**found, "error": f"HTTP {answer.status_code}"}
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    if found["ttft"]:
                        found["itl"].append(now - last)
                    else:
                        found["ttft"] = now - begin
                    last = now
                    found["output_len"] = json.loads(line[6:])["meta_info"]["completion_tokens"]
        return found

    begin = time.monotonic()
    with ThreadPoolExecutor(options.max_concurrency) as pool:
        answers = list(pool.map(ask, range(options.num_prompts)))
    client.close()
    tokens = sum(answer["output_len"] for answer in answers)
    report = {
        "max_concurrency": options.max_concurrency,
        "output_throughput": tokens / (time.monotonic() - begin),
        "ttfts": [answer["ttft"] for answer in answers],
        "itls": [answer["itl"] for answer in answers],
        "output_lens": [answer["output_len"] for answer in answers],
        "errors": [answer["error"] for answer in answers],
    }
    with open(options.output_file, "a") as file:
        file.write(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
