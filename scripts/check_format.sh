#!/usr/bin/env bash
# usage: scripts/check_format.sh [--fix] [FILE...]
# Checks (or with --fix, applies) the layout of .clang-format on the given C++ and CUDA files,
# by default on all of the project's. Versions of clang-format differ, so it has to be 14.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(--dry-run -Werror)
if [[ ${1:-} == --fix ]]; then
  mode=(-i)
  shift
fi

files=("$@")
if ((${#files[@]} == 0)); then
  folders=()
  for folder in include src apps tests fuzz benchmarks; do
    [[ -d $folder ]] && folders+=("$folder")
  done
  mapfile -t files < <(find "${folders[@]}" -path tests/data -prune -o \
    \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print | sort)
fi
((${#files[@]})) || exit 0

if ! command -v clang-format-14 >/dev/null; then
  echo "clang-format-14 was not found; scripts/install_packages.sh test installs it." >&2
  exit 1
fi
clang-format-14 --style=file "${mode[@]}" "${files[@]}"
