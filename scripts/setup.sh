#!/usr/bin/env bash
# Makes .venv from requirements/lock.txt; returns at once when lock and pyproject.toml are those of the last run.
#   QUATRAIN_PYTHON       the Python to use (default: the first of python3.11 ... python3.14, python3 that fits)
#   QUATRAIN_TORCH_INDEX  index that torch alone is taken from; "default" is pip's own (the CUDA build on Linux)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NEEDED_GIB=4        # measured: 1.9 GiB of environment, the rest is for downloads
readonly NEEDED_CUDA_GIB=12  # measured: 5.6 GiB with the CUDA libraries that the standard Linux build of torch brings
readonly CPU_INDEX=https://download.pytorch.org/whl/cpu
readonly STAMP=.venv/.quatrain-setup

say() { printf 'setup: %s\n' "$*"; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

fingerprint() { cat requirements/lock.txt pyproject.toml scripts/setup.sh | cksum; }

ready() {
    [[ -f $STAMP && "$(<"$STAMP")" == "$(fingerprint)" ]] && .venv/bin/python -c '' 2>/dev/null
}

find_python() { # prints the command; the reasons for those that do not fit go to stderr
    local name found="" names=(python3.11 python3.12 python3.13 python3.14 python3 python)
    [[ -z ${QUATRAIN_PYTHON:-} ]] || names=("$QUATRAIN_PYTHON")
    for name in "${names[@]}"; do
        command -v "$name" >/dev/null 2>&1 || continue
        "$name" -c '' >/dev/null 2>&1 || continue
        found=yes
        if ! "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            printf 'setup: %s is %s, need Python 3.11 or newer\n' "$name" "$("$name" -V 2>&1)" >&2
        elif ! "$name" -c 'import ensurepip, venv' 2>/dev/null; then
            printf 'setup: %s has no venv module; on Debian or Ubuntu: apt install python3-venv\n' "$name" >&2
        else
            printf '%s' "$name"
            return
        fi
    done
    [[ -n $found ]] || printf 'setup: none of %s runs (PATH is %s)\n' "${names[*]}" "$PATH" >&2
    stop "Python 3.11 or newer with venv is missing; install it, or name it: QUATRAIN_PYTHON=/path/to/python make setup"
}

need_disk() { # GiB
    local free_kib
    free_kib=$(df -Pk . | awk 'NR == 2 { print $4 }')
    ((free_kib >= $1 * 1024 * 1024)) ||
        stop "$((free_kib / 1024 / 1024)) GiB are free in $PWD, need $1 GiB; free some space and run the same command again"
}

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }

pinned() { grep -E "^$1==" requirements/lock.txt; }

install_torch() {
    local torch index=${QUATRAIN_TORCH_INDEX:-}
    torch=$(pinned torch)
    if .venv/bin/python -c "import importlib.metadata as m; assert m.version('torch').split('+')[0] == '${torch#*==}'" 2>/dev/null; then
        return
    fi
    if [[ -n $index && $index != default ]]; then
        pip install --index-url "$index" -c requirements/lock.txt "$torch" || stop "$torch could not be installed from $index"
        return
    fi
    if [[ -z $index && $(uname -s) == Linux ]] && ! command -v nvidia-smi >/dev/null 2>&1; then
        say "installing the CPU build of $torch"
        pip install --no-deps "$torch+cpu" 2>/dev/null && return
        pip install --no-deps --retries 1 --timeout 20 --index-url "$CPU_INDEX" "$torch+cpu" 2>/dev/null && return
        say "no CPU build of torch within reach ($CPU_INDEX); taking the standard build, several GB, which runs without a GPU too"
    fi
    [[ $(uname -s) != Linux ]] || need_disk $NEEDED_CUDA_GIB
    pip install -c requirements/lock.txt "$torch" || stop "$torch could not be installed; is the package index reachable?"
}

if ready; then exit 0; fi
python=$(find_python)
need_disk $NEEDED_GIB
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    say "making .venv with $("$python" -V)"
    "$python" -m venv --clear .venv
fi
pip install -q "$(pinned pip)" "$(pinned setuptools)" || stop "pip could not be brought up to date; is the package index reachable?"
install_torch
# The one package that may have to be compiled comes first: a missing compiler shows within seconds.
pip install -q --no-deps "$(pinned pycosat)" ||
    stop "pycosat (used by reasoning-gym) could not be built; install a C compiler and Python's headers (Debian: apt install gcc python3-dev)"
say "installing $(grep -c == requirements/lock.txt) pinned packages"
pip install --no-deps -r requirements/lock.txt || stop "a pinned package could not be installed; is the package index reachable?"
pip install -q --no-deps --no-build-isolation -e .
.venv/bin/python -c 'import torch, transformers' || stop "the environment does not import; remove .venv and run the same command again"
fingerprint >"$STAMP"
say "ready: $(du -sh .venv | cut -f1) in .venv"
