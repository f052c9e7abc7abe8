"""Parses and checks a few flags as the engine does; `FAKE_ENGINE` makes it misbehave."""

import argparse
import os
import sys
import time

import torch

TROUBLE = os.environ.get("FAKE_ENGINE", "")
if TROUBLE == "cannot be imported":
    raise ImportError("libcudart.so.12: cannot open shared object file")
if TROUBLE == "dies while importing":
    os._exit(3)
if TROUBLE == "prints":
    print("chatter on standard output")


class ServerArgs:
    def __init__(self, **values):
        self.__dict__.update(values)
        if TROUBLE == "misses a file":
            with open("/nowhere/config.json"):
                pass
        if TROUBLE == "dies":
            os._exit(7)
        if TROUBLE == "refuses everything":
            raise ValueError("nothing is good enough")
        self.capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
        if self.ep_size not in (1, self.tp_size):
            raise AssertionError("The expert parallel size must be 1 or the same as the tensor parallel size")
        if self.ep_size > 1:
            os.environ["FAKE_LEFT_BEHIND"] = "1"
        self.left_behind = os.environ.get("FAKE_LEFT_BEHIND")

    def check_server_args(self):
        assert self.page_size != 48, "page_size 48 is good for nothing"


def prepare_server_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--trust-remote-code", action="store_true")
    for flag in ("--tp-size", "--ep-size", "--page-size", "--port", "--cuda-graph-max-bs", "--chunked-prefill-size"):
        parser.add_argument(flag, type=int, default=1)
    for flag in ("--host", "--moe-a2a-backend", "--moe-runner-backend", "--api-key"):
        parser.add_argument(flag)
    parser.add_argument("--mem-fraction-static", type=float)
    for flag in ("--disable-custom-all-reduce", "--enable-mscclpp"):
        parser.add_argument(flag, action="store_true")
    if TROUBLE == "says nothing":
        time.sleep(3600)
    if TROUBLE == "prints":
        print("more chatter", file=sys.stdout)
    return ServerArgs(**vars(parser.parse_args(argv)))
