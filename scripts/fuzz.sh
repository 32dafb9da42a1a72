#!/usr/bin/env bash
# usage: scripts/fuzz.sh [SECONDS [TARGET...]]
# Builds the libFuzzer targets under ASan+UBSan and runs each (default: all) for SECONDS (60).
# New inputs go to build/fuzz/corpus/TARGET; the committed seeds in fuzz/corpus/TARGET are only
# read. A crashing input is kept in build/fuzz/crashes; add it to the seeds with its fix.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "SECONDS is \"$seconds\"; expected a whole number of seconds above 0." >&2
  exit 2
fi
shift || true

targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in fuzz/*.cc; do
    [[ -e $source ]] && targets+=("$(basename "$source" .cc)")
  done
fi
if ((${#targets[@]} == 0)); then
  echo "There are no fuzz targets: fuzz/ holds no .cc file." >&2
  exit 1
fi

scripts/build.sh fuzz "${targets[@]}"

crashes=build/fuzz/crashes
mkdir -p "$crashes"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for target in "${targets[@]}"; do
  found=build/fuzz/corpus/$target
  mkdir -p "$found"
  folders=("$found")
  [[ -d fuzz/corpus/$target ]] && folders+=("fuzz/corpus/$target")
  if UBSAN_OPTIONS=print_stacktrace=1 "build/fuzz/fuzz/$target" -max_total_time="$seconds" \
    -timeout=10 -artifact_prefix="$crashes/$target-" "${folders[@]}" >"$log" 2>&1; then
    echo "$target: clean, $(grep -E '^Done ' "$log" | tail -n 1)"
  else
    cat "$log"
    echo "$target: FAILED, the input is in $crashes"
    failed=$((failed + 1))
  fi
done
echo "$((${#targets[@]} - failed)) passed, $failed failed"
((failed == 0))
