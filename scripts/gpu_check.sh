#!/usr/bin/env bash
# On a machine with a GPU, in the repository: runs the tests of the CUDA backend, then the benchmarks,
# from build/gpu/bundle.tar.xz (scripts/gpu_bundle.sh) or else build/release. Prints the timings and,
# as its last line, `N passed, N failed`; fails unless something ran and nothing failed.
#
#   scripts/gpu_check.sh [--sanitize] [--no-bench] [PART...]     PART: of bench_gpu, default all
#
# --sanitize also runs the kernel tests under compute-sanitizer's memcheck and racecheck.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PEREGRINE_ROOT=$PWD

sanitize=no
bench=yes
parts=()
for argument in "$@"; do
  case "$argument" in
    --sanitize) sanitize=yes ;;
    --no-bench) bench=no ;;
    *) parts+=("$argument") ;;
  esac
done

programs=build/release
if [[ -f build/gpu/bundle.tar.xz ]]; then
  programs=$(mktemp -d)
  tar -C "$programs" -xJf build/gpu/bundle.tar.xz
  export LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

passed=0
failed=0
# run BACKEND FILTER [CHECKER...]: tests on `cuda`, or on `cuda_visible` where they look into memory.
run() {
  local backend=$1 filter=$2 log code
  shift 2
  log=$(mktemp)
  PEREGRINE_TEST_BACKENDS=$backend "$@" "$programs/gpu_test" --gtest_filter="$filter" >"$log" 2>&1
  code=$?
  local ok bad
  ok=$(grep -c '^\[       OK' "$log")
  bad=$(grep -c '^\[  FAILED  \].*ms)$' "$log")
  # A crash, or a checker's finding in passing tests.
  if ((code != 0 && bad == 0)) || ((ok + bad == 0)); then bad=$((bad + 1)); fi
  passed=$((passed + ok))
  failed=$((failed + bad))
  echo "${*:-tests} on $backend: $ok passed, $bad failed"
  grep '^\[  SKIPPED \].*ms)$' "$log"
  ((bad == 0)) || tail -n 60 "$log"
  rm -f "$log"
}

kernels='Devices/Linear*:Devices/Experts*:Devices/Invariance*:Devices/Memory*'
run cuda "$kernels:Backends/Bits*:Backends/Tiny*"
run cuda_visible 'Devices/*:Fixtures/*:Backends/Replay*:Backends/EngramModule*:Backends/BackboneQuantOn*'
if [[ $sanitize == yes ]]; then
  for tool in memcheck racecheck; do
    run cuda "$kernels:-*Exhaustion*" compute-sanitizer --tool "$tool" --error-exitcode 9
    run cuda_visible "Devices/*:-${kernels}:*Released*" \
      compute-sanitizer --tool "$tool" --error-exitcode 9
  done
fi
if [[ $bench == yes ]]; then
  "$programs/bench_gpu" "${parts[@]}" || failed=$((failed + 1))
fi

echo "$passed passed, $failed failed"
((passed > 0 && failed == 0))
