#!/usr/bin/env bash
# usage: scripts/tidy.sh [FILE...]
# Runs clang-tidy with .clang-tidy on the given sources, by default on the .cc files that differ
# from the main branch (uncommitted and new ones included).
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-tidy-14 >/dev/null; then
  echo "clang-tidy-14 was not found; scripts/install_packages.sh test installs it." >&2
  exit 1
fi

files=("$@")
if ((${#files[@]} == 0)); then
  base=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  mapfile -t files < <({
    git diff --name-only --diff-filter=d "$base" -- '*.cc'
    git ls-files --others --exclude-standard -- '*.cc'
  } | grep -v '^fuzz/' | sort -u)
fi
if ((${#files[@]} == 0)); then
  echo "No source differs from the main branch."
  exit 0
fi

[[ -e build/release/compile_commands.json ]] || cmake --preset release >/dev/null
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy-14 -p build/release --quiet --warnings-as-errors='*' \
  2> >(grep -v 'warnings generated' >&2)
