#!/bin/sh
# Usage: ci/setup.sh EXTRA
# Makes .venv when it is missing and installs kvfence[EXTRA] into it, editable, at the pinned versions and hashes.
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

pip=".venv/bin/python -m pip --disable-pip-version-check"

# Every file that comes from an index is one whose SHA-256 is in a lock. Locks name all that is needed (--no-deps), and
# nothing is built but kvfence itself, by the setuptools of ci/lock-build.txt.
locked() {
    $pip install --quiet --quiet --no-deps --require-hashes --only-binary :all: --requirement "$1"
}

echo "setup: installing kvfence[$extra] into .venv" >&2
for lock in ci/lock-build.txt "ci/lock-$extra.txt"; do
    locked "$lock" || say "pip could not install the packages of $lock; its message is above"
done
# The CPU build is a tenth of the size; where there is none, torch comes with the CUDA libraries that it needs.
cpu=checker/audit/releases/torch_cpu_lock.txt
locked $cpu 2>/dev/null && grep -q "^$(.venv/bin/python -m pip freeze --quiet | grep ^torch==) " $cpu ||
    locked checker/audit/releases/torch_cuda_lock.txt ||
    say "pip could not install torch; its message is above"
$pip install --quiet --quiet --no-deps --no-build-isolation --editable ".[$extra]" ||
    say "pip could not build kvfence; its message is above"
$pip check >&2 || say "ci/lock-$extra.txt does not name all that is needed: python ci/lock.py writes it again"
touch ".venv/.$extra"
