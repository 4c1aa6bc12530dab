#!/bin/sh
# Runs a command with a native core that is built with AddressSanitizer and UndefinedBehaviorSanitizer, in a folder of its own.
#   sh scripts/sanitize.sh .venv/bin/python -m pytest -q tests/guards tests/runtime
# The core takes some five minutes of two free cores to build. Not for: tests/frame/test_greenlets.py and tests/threads/test_storm.py (greenlets copy
# stacks, which AddressSanitizer takes for an overflow), tests/frame/test_native.py (builds cores), tests that limit the address space, which
# AddressSanitizer needs for itself (tests/runtime/test_cpu_memory.py -k short), and those that preload failing allocations in its place
# (tests/runtime/test_no_memory.py -k midst).
# The first finding of either ends its process: one that only printed would go unseen, as pytest drops the output of tests that pass, and tests that of
# their child processes. To see all of UndefinedBehaviorSanitizer's findings in the process of pytest, set UBSAN_OPTIONS=halt_on_error=0.
set -e
[ $# -gt 0 ] || { sed -n '2,9s/^# *//p' "$0"; exit 2; }
compiler=${CXX:-g++}
: "${DYNACOMPILE_NATIVE_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/dynacompile/sanitized}"
export DYNACOMPILE_NATIVE_DIR
export DYNACOMPILE_COMPILER_SECONDS="${DYNACOMPILE_COMPILER_SECONDS:-1800}"
export CXXFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer -g1"
export LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libubsan.so)"
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export PYTEST_ADDOPTS="--capture=sys${PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}"
export PYTHONMALLOC=malloc
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$@"
