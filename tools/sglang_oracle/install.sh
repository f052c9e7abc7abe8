#!/usr/bin/env bash
# Older releases of SGLang for the oracle, each in a folder of its own that goes in front of the installed one.
#
#   tools/sglang_oracle/install.sh [VERSION…]      default: 0.5.9 and 0.5.13; about 50 MB each, seconds
#
# SERVETUNE_SGLANG_ORACLE_DIR   where they lie (default ~/.cache/servetune/sglang-oracle)
# Needs the environment that tools/sglang_cpu/install.sh makes; its packages serve all releases.
set -euo pipefail

root=${SERVETUNE_SGLANG_ORACLE_DIR:-$HOME/.cache/servetune/sglang-oracle}
python=${SERVETUNE_SGLANG_CPU_DIR:-$HOME/.cache/servetune/sglang-cpu}/current/venv/bin/python
[ "$#" -gt 0 ] || set -- 0.5.9 0.5.13

[ -x "$python" ] || { echo "sglang-oracle: error: $python is missing; run tools/sglang_cpu/install.sh first" >&2; exit 1; }
mkdir -p "$root"
exec 9>"$root/lock"
flock 9

for version in "$@"; do
    if [ ! -d "$root/$version" ]; then
        beside=$(mktemp -d "$root/.new-XXXXXX")
        trap 'rm -rf "$beside"' EXIT
        echo "sglang-oracle: $version …"
        "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-compile \
            --target "$beside" "sglang==$version" ||
            { echo "sglang-oracle: error: pip could not get sglang $version (its message stands above)" >&2; exit 1; }
        mv -T "$beside" "$root/$version"
    fi
    echo "sglang-oracle: ready: $root/$version"
done
