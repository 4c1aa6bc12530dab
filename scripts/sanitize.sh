#!/bin/sh
# Runs a command with a native core that is built with AddressSanitizer and UndefinedBehaviorSanitizer, in a folder of its own.
#   sh scripts/sanitize.sh .venv/bin/python -m pytest -q tests/guards tests/runtime
# The core takes some five minutes of two free cores to build. Not for: tests/frame/test_greenlets.py (greenlets copy stacks, which AddressSanitizer
# takes for an overflow), tests/frame/test_native.py (builds cores), and tests that limit the address space, which AddressSanitizer needs for itself.
# What the sanitizers report goes to files, as pytest drops the output of tests that pass; it is printed at the end, and makes the exit status 1.
set -e
[ $# -gt 0 ] || { sed -n '2,6s/^# *//p' "$0"; exit 2; }
compiler=${CXX:-g++}
: "${DYNACOMPILE_NATIVE_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/dynacompile/sanitized}"
export DYNACOMPILE_NATIVE_DIR
export DYNACOMPILE_COMPILER_SECONDS="${DYNACOMPILE_COMPILER_SECONDS:-1800}"
export CXXFLAGS="-fsanitize=address,undefined -fno-omit-frame-pointer -g1"
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
status=0
(
    export LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libubsan.so)"
    export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:log_path=$reports/report${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
    export UBSAN_OPTIONS="print_stacktrace=1:log_path=$reports/report${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
    export PYTHONMALLOC=malloc
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    exec "$@"
) || status=$?
for report in "$reports"/report*; do
    [ -s "$report" ] || continue
    cat "$report"
    [ $status -ne 0 ] || status=1
done
exit $status
