#!/usr/bin/env bash
# Installs the Debian packages that a build (`build`) or the test suite (`test`, which includes
# `build`) needs and that are missing. Says nothing when nothing is missing. CUDA is never
# installed, only found. Works as root or through sudo; otherwise names the command to run.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build pkg-config ccache mold python3 python3-venv
  libhwy-dev libboost1.81-dev libboost-url1.81-dev nlohmann-json3-dev libpcre2-dev libicu-dev
  libcli11-dev libedit-dev libspdlog-dev libfmt-dev prometheus-cpp-dev libhiredis-dev libssl-dev
  libtomlplusplus-dev librust-blake3-dev libucx-dev libopenmpi-dev openmpi-bin
  libgtest-dev libbenchmark-dev librapidcheck-dev
)
# clang and its runtime build the fuzz targets; the other two clang tools are checks; the browser
# drives the server's page.
test_packages=(redis-server clang libclang-rt-14-dev clang-format-14 clang-tidy-14
  chromium-headless-shell fonts-dejavu-core)

case "${1:-}" in
  build) wanted=("${build_packages[@]}") ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
  *)
    echo "usage: scripts/install_packages.sh build|test" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "Peregrine's set-up expects Debian 12, but dpkg-query was not found;" \
    "install the counterparts of these packages by hand: ${wanted[*]}" >&2
  exit 1
fi

# `db:Status-Abbrev` starts with "ii" for an installed package; unknown names go to stderr.
installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${wanted[@]}" 2>/dev/null |
  awk '$1 == "ii" {print $2}' || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
((${#missing[@]} == 0)) && exit 0

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "Installing packages needs root and sudo was not found; run this as root:" \
      "apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >>"$log" 2>&1; }
if ! apt update || ! apt install -y --no-install-recommends "${missing[@]}"; then
  cat "$log" >&2
  echo "apt-get could not install the packages above; its output says why." >&2
  exit 1
fi
