#!/usr/bin/env bash
# Environments of the load generators that servetune's is compared with: each in its own, outside the clone.
# SGLang's bench_serving comes with `make sglang-cpu`. SERVETUNE_BENCH_LOAD_DIR sets another place.
set -euo pipefail
root=${SERVETUNE_BENCH_LOAD_DIR:-$HOME/.cache/servetune/bench-load}
python=${PYTHON:-python3.11}
for pin in aiperf==0.13.0 guidellm==0.8.1; do
    name=${pin%%==*}
    if [ ! -x "$root/$name/bin/$name" ]; then
        echo "bench-load: installing $pin …"
        "$python" -m venv "$root/$name"
        "$root/$name/bin/pip" install --quiet --disable-pip-version-check "$pin"
    fi
done
"$(dirname "${BASH_SOURCE[0]}")/../../tools/sglang_cpu/install.sh"
