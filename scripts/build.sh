#!/usr/bin/env bash
# usage: scripts/build.sh PRESET [TARGET...]
# Configures a preset where needed and builds the targets (default: all). Shows one line of
# progress while something is compiled, nothing when all is up to date, and the whole output of
# the build when it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
targets=()
(($#)) && targets=(--target "$@")

log=$(mktemp)
trap 'rm -f "$log"' EXIT

configure() {
  # Ninja configures again by itself when a CMakeLists.txt changes, but not for the presets.
  local made=build/$preset/build.ninja
  [[ -e $made && $made -nt CMakePresets.json ]] && return 0
  echo "Configuring build/$preset" >&2
  cmake --preset "$preset" >"$log" 2>&1 || return 1
  touch "$made"
}

show_progress() {
  local line started=
  while IFS= read -r line; do
    [[ $line =~ ^\[([1-9][0-9]*)/([0-9]+)\] ]] || continue
    if [[ -t 2 ]]; then
      printf '\rBuilding build/%s: %d of %d\033[K' \
        "$preset" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" >&2
    elif [[ -z $started ]]; then
      echo "Building build/$preset" >&2
    fi
    started=yes
  done
  [[ -z $started || ! -t 2 ]] || printf '\r\033[K' >&2
}

build() {
  cmake --build "build/$preset" -j "$(nproc)" "${targets[@]}" 2>&1 | tee "$log" | show_progress
}

if ! configure || ! build; then
  cat "$log" >&2
  echo "The build of build/$preset failed; its output is above." >&2
  exit 1
fi
