#!/usr/bin/env bash
# `make lint`: formatting, clippy, what the dependencies are, shell scripts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
need cargo "a Rust toolchain (https://rustup.rs)" cc "a C compiler"
use_target

stage "cargo fmt"
cargo fmt --all --check

stage "cargo clippy"
cargo clippy --workspace --all-targets --all-features -- --deny warnings

stage "cargo deny: bans, licences, sources"
readonly CARGO_DENY_VERSION=0.20.2
deny=$CLOUDMAP_MCS_CACHE/tools/cargo-deny-$CARGO_DENY_VERSION
if ! [ -x "$deny/bin/cargo-deny" ]; then
	echo "installing cargo-deny $CARGO_DENY_VERSION into the cache (some minutes, once)"
	cargo install --quiet --locked --root "$deny" --target-dir "$deny.build" "cargo-deny@$CARGO_DENY_VERSION"
	rm -rf "$deny.build"
fi
"$deny/bin/cargo-deny" --all-features check --hide-inclusion-graph bans licenses sources

stage "shellcheck"
if ! command -v shellcheck >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends shellcheck >/dev/null ||
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends shellcheck >/dev/null; }
fi
need shellcheck "shellcheck (https://www.shellcheck.net)"
mapfile -t scripts < <(git ls-files '*.sh' .ci/run integration/testbed/testbed)
shellcheck --external-sources "${scripts[@]}"

printf '\n%slint passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
