#!/usr/bin/env bash
# Packs what a GPU machine needs to check and measure the CUDA backend: the programs gpu_test and
# bench_gpu with the shared libraries that such a machine may lack, into build/gpu/bundle.tar.xz. The
# repository itself (tests/data, models/tiny, scripts) travels beside it; scripts/gpu_check.sh runs
# there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake --preset release -DPEREGRINE_BENCHMARKS=ON >/dev/null
cmake --build --preset release --target gpu_test bench_gpu
out=build/gpu
rm -rf "$out/bundle"
mkdir -p "$out/bundle/lib"
for program in gpu_test bench_gpu; do
  strip -o "$out/bundle/$program" "build/release/$program"
  # Everything but the C library, its parts and the loader.
  ldd "build/release/$program" | awk '$2 == "=>" {print $3}' |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
    while read -r library; do cp -L "$library" "$out/bundle/lib/"; done
done
tar -C "$out/bundle" -c . | xz -T0 -1 >"$out/bundle.tar.xz"
ls -l "$out/bundle.tar.xz"
