#!/usr/bin/env bash
# On a machine with a GPU: the GPU tests, then the benchmark, in one call. Usage: scripts/gpu_check.sh [seconds for the tests]
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
timeout "${1:-240}" "$python" -m pytest tests/gpu -q -x -p no:cacheprovider --timeout 120 || exit
"$python" scripts/bench.py --device cuda --write
