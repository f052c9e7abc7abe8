#!/usr/bin/env bash
# Make the environment of the real engine: SGLang on a CPU with a tiny random model. About four minutes and 3.5 GB, once.
#
#   tools/sglang_cpu/install.sh            makes it, or does nothing when it is up to date
#   tools/sglang_cpu/install.sh --check    exit status 0 when it is up to date, 1 when not; changes nothing
#
# SERVETUNE_SGLANG_CPU_DIR   where it lies      (default ~/.cache/servetune/sglang-cpu; outside the clone, kept)
# PYTHON                     a Python 3.11      (default python3.11, else python3)
#
# Each set of pins has a folder of its own, named by its hash; `current` points at the one that was finished last, so
# `current/venv/bin/python` and `current/model` are whole at every moment, also while another set is being made.
# The stand-ins and the tiny model are small: when only they change, they are replaced in place.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${SERVETUNE_SGLANG_CPU_DIR:-$HOME/.cache/servetune/sglang-cpu}
log=$root/install.log

say() { printf 'sglang-cpu: %s\n' "$*"; }
fail() { printf 'sglang-cpu: error: %s\n' "$*" >&2; exit 1; }

hash_of() { (cd "$here" && find "$@" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum |
    sha256sum | cut -c1-12); }

find_python() {
    local python
    for python in ${PYTHON:-python3.11 python3}; do
        if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$python"; return
        fi
    done
    fail "no Python 3.11 found (tried: ${PYTHON:-python3.11 python3}); the pins are for 3.11: install it or set PYTHON"
}

# step LABEL COMMAND…: one progress line; the output goes to the log, its end is shown when the command fails.
step() {
    local label=$1 start=$SECONDS; shift
    say "$label …"
    if ! "$@" >>"$log" 2>&1; then
        tail -n 15 "$log" >&2
        fail "$label failed; the whole output is in $log"
    fi
    say "$label: $((SECONDS - start)) s"
}

install_pins() { # exact versions without resolving: SGLang's own requirements would bring CUDA builds of several gigabytes
    "$1/venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps --requirement "$here/pins.txt" ||
        { echo "pip could not get a pinned package (see the line above that starts with ERROR)"; return 1; }
}

install_shim() {
    local packages
    packages=$("$1/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp -r "$here/shim/sgl_kernel" "$here/shim/sglang_cpu_site.py" "$packages/"
    echo 'import sglang_cpu_site' >"$packages/sglang_cpu_site.pth"
    # The tiny model needs its own module and those that it builds on; importing the other 200 takes seconds per process.
    find "$packages/sglang/srt/models" -maxdepth 1 -name '*.py' -printf '%f\n' | sed 's/\.py$//' | LC_ALL=C sort |
        grep -vxE '__init__|llama|qwen2|qwen2_moe|qwen3|qwen3_moe' >"$packages/disabled_models.txt"
}

check_install() { # imports what the launcher imports; a package that is missing shows here and not in the first trial
    cd "$1" && HF_HUB_OFFLINE=1 SGLANG_USE_CPU_ENGINE=1 venv/bin/python -c '
import sglang, sglang.launch_server, sglang.srt.entrypoints.http_server
from transformers import AutoTokenizer
assert AutoTokenizer.from_pretrained("model").encode("abc"), "the tokenizer of the tiny model does not work"
print("sglang", sglang.__version__)'
}

make_packages() {
    local target=$1 python
    python=$(find_python)
    rm -rf "$target"; mkdir -p "$target"; : >"$log"
    say "making the environment in $target (about four minutes, 3.5 GB)"
    step "virtual environment" "$python" -m venv "$target/venv"
    step "packages" install_pins "$target"
    touch "$target/packages-complete"
}

make_additions() { # $2: the hash of what is added, written last
    step "stand-ins for GPU packages" install_shim "$1"
    step "tiny model" "$1/venv/bin/python" "$here/make_tiny_model.py" "$1/model"
    step "import check" check_install "$1"
    echo "$2" >"$1/complete"
}

point_current() { # atomic: a link made aside, renamed over the old one
    ln -sfn "$(basename "$1")" "$root/current.new"
    mv -fT "$root/current.new" "$root/current"
}

forget_old() { # keeps the two environments used last: two clones with different pins do not take turns to build
    find "$root" -mindepth 1 -maxdepth 1 -type d -regex '.*/[0-9a-f]*' -printf '%T@ %p\n' | sort -rn | tail -n +3 |
        cut -d' ' -f2- | while IFS= read -r old; do rm -rf "$old"; done
}

main() {
    local target additions
    target=$root/$(hash_of pins.txt)
    additions=$(hash_of install.sh make_tiny_model.py shim)
    if [ "${1:-}" = --check ]; then
        [ "$(cat "$target/complete" 2>/dev/null)" = "$additions" ] && [ "$root/current" -ef "$target" ]; exit
    fi
    command -v flock >/dev/null || fail "flock is missing (Debian: util-linux); it keeps two installations apart"
    mkdir -p "$root" || fail "cannot create $root; set SERVETUNE_SGLANG_CPU_DIR to a folder that can be written"
    exec 9>"$root/lock"
    flock -n 9 || { say "another installation is running; waiting for it"; flock 9; }
    [ -e "$target/packages-complete" ] || make_packages "$target"
    [ "$(cat "$target/complete" 2>/dev/null)" = "$additions" ] || make_additions "$target" "$additions"
    touch "$target"
    point_current "$target"
    forget_old
    say "ready: python $root/current/venv/bin/python, model $root/current/model"
}

main "$@"
