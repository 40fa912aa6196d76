#!/bin/sh
# Usage: ci/setup.sh EXTRA
# Makes .venv when it is missing and installs kvfence[EXTRA] into it, editable, at the pinned versions.
# Run from the root of the repository; the Makefile does. PYTHON names the interpreter (default: python3).
set -eu

extra=$1
python=${PYTHON:-python3}

say() {
    echo "setup: $*" >&2
    exit 2
}

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c '' 2>/dev/null; then
    command -v "$python" >/dev/null 2>&1 ||
        say "no $python found: install Python 3.11 or newer, or name one with make PYTHON=/path/to/python"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        say "$python is $("$python" -V 2>&1 | cut -d' ' -f2), kvfence needs 3.11 or newer: name one with make PYTHON=/path/to/python"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        say "$python has no venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)"
    rm -rf .venv
    "$python" -m venv .venv
fi

echo "setup: installing kvfence[$extra] into .venv" >&2
.venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check \
    --constraint ci/constraints.txt --editable ".[$extra]" ||
    say "pip could not install the packages of ci/constraints.txt; its message is above"
touch ".venv/.$extra"
