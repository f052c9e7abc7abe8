"""Ask SGLang's own parser and checks about launch arguments, on a machine without a GPU.

Reads one JSON list of arguments (as after `sglang.launch_server`) per line, answers one JSON verdict per line; what is
in a verdict: `src/servetune/engines/sglang/_preflight_program.py`, the same code that a study asks on its node.

    {"ok": true, "decided": true, "stage": null, "error": null, "message": null, "where": null, "warnings": [...],
     "resolved": {"attention_backend": "flashinfer", ...}, "ms": 41}

Run with the Python of the SGLang environment (`tools/sglang_cpu`); `--release` puts another release in front of the
installed one (`tools/sglang_oracle/install.sh`). `--model-path` among the arguments needs a folder with a config.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src/servetune/engines/sglang"))
import _preflight_program as preflight
import _presented_gpus as presented


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--compute-capability", default="9.0", help="of each presented GPU, such as 12.0")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--memory-mib", type=int, default=81559, help="of each GPU, as nvidia-smi says it")
    parser.add_argument("--gpu-name", help="default: a usual one of that compute capability")
    parser.add_argument("--cuda", default="13.0")
    parser.add_argument("--release", metavar="DIRECTORY", help="a release to use instead of the installed one")
    parser.add_argument("--keys", help="comma-separated resolved arguments to answer; default all")
    parser.add_argument("--absent", default="", help="comma-separated packages that are not to look importable")
    parser.add_argument("--real-gpus", action="store_true", help="present nothing: ask about the GPUs of this machine")
    return parser.parse_args(argv)


def preparation(chosen: argparse.Namespace) -> dict[str, Any]:
    """What the preflight's first line says."""
    release = Path(chosen.release).expanduser().resolve() if chosen.release else None
    if release is not None and not (release / "sglang" / "srt").is_dir():
        sys.exit(f"--release {release}: no sglang/srt in there; tools/sglang_oracle/install.sh makes such folders")
    absent = chosen.absent.split(",")
    gpus = {
        "count": chosen.gpus,
        "capability": chosen.compute_capability,
        "memory_mib": chosen.memory_mib,
        "model": chosen.gpu_name,
        "cuda": chosen.cuda,
        "packages": [package for package in presented.GPU_PACKAGES if package not in absent],
    }
    return {"gpus": None if chosen.real_gpus else gpus, "path": [] if release is None else [str(release)]}


def main() -> None:
    """Answer until the input ends; one line with version and start-up time goes to standard error first."""
    begin_s = time.monotonic()
    chosen = options(sys.argv[1:])
    os.environ["HF_HUB_OFFLINE"] = "1"
    preflight.prepare(preparation(chosen))
    keys = chosen.keys.split(",") if chosen.keys else None
    ready = {"sglang": preflight.version(), "ready_s": round(time.monotonic() - begin_s, 1)}
    print(json.dumps(ready), file=sys.stderr, flush=True)
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(preflight.in_fork(json.loads(line), {}, keys)), flush=True)


if __name__ == "__main__":
    main()
