#!/usr/bin/env bash
# check_machine.sh [PYTHON]           print a usable interpreter, or say what is missing and how to get it
# check_machine.sh --compiler PYTHON  check for a C++17 compiler and Python's headers
set -euo pipefail

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }

if [ "${1:-}" = "--compiler" ]; then
    compiler="${CXX:-}"
    [ -n "$compiler" ] || for candidate in c++ g++ clang++; do
        if command -v "$candidate" > /dev/null; then compiler="$candidate" && break; fi
    done
    [ -n "$compiler" ] && printf 'int main() { return 0; }\n' | $compiler -std=c++17 -x c++ - -o /dev/null 2> /dev/null ||
        fail "no working C++17 compiler (tried ${compiler:-c++, g++, clang++})" \
            "  Debian/Ubuntu: apt-get install g++" \
            "  without root: one from conda-forge (package cxx-compiler), then: make CXX=/path/to/c++"
    headers="$("$2" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    [ -e "$headers/Python.h" ] ||
        fail "Python's headers are missing ($headers/Python.h)" \
            "  Debian/Ubuntu: apt-get install python3-dev" \
            "  without root: a Python that ships them (uv, pyenv, conda), then: make distclean env PYTHON=/path/to/python"
    exit 0
fi

python=""
if [ -n "${1:-}" ]; then
    recent "$1" || fail "PYTHON=$1 does not run or is older than 3.11"
    python="$1"
else
    for candidate in python3.11 python3.12 python3.13 python3; do
        if recent "$candidate"; then python="$candidate" && break; fi
    done
fi
[ -n "$python" ] || fail "no Python 3.11 or newer found" \
    "  Debian 12, Ubuntu 24.04 or newer: apt-get install python3 python3-venv python3-dev" \
    "  without root: one from uv, pyenv or conda, then: make env PYTHON=/path/to/python"
"$python" -c 'import ensurepip, venv' 2> /dev/null ||
    fail "$python lacks the venv module" \
        "  Debian/Ubuntu: apt-get install python3-venv" \
        "  without root: a Python from uv, pyenv or conda, then: make env PYTHON=/path/to/python"
command -v "$python"
