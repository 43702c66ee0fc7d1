#!/usr/bin/env bash
# Every change has to pass this (`make check`): formatting, clippy, rustdoc, the rules for dependencies, the shell
# scripts, and the library's tests. It needs no root, and takes a few minutes once everything is compiled. `make test`
# begins with it.
#
# Usage: integration/check.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
need cargo "a Rust toolchain (https://rustup.rs)" cc "a C compiler"
use_target
export "${OFFLINE_AWS[@]}"

stage "cargo fmt"
cargo fmt --all --check

stage "shellcheck"
if ! command -v shellcheck >/dev/null; then packages shellcheck || true; fi
need shellcheck "shellcheck (https://www.shellcheck.net)"
mapfile -t scripts < <(git ls-files '*.sh' .ci/run integration/testbed/testbed integration/testbed/lib/machine-init)
shellcheck --external-sources "${scripts[@]}"

stage "cargo clippy"
cargo clippy --workspace --all-targets --all-features -- --deny warnings

stage "cargo doc"
# Includes private items, because contributors follow links to them.
RUSTDOCFLAGS="--deny warnings --allow rustdoc::private_intra_doc_links" cargo doc --quiet --workspace --no-deps --document-private-items

stage "cargo deny: bans, licences, sources, advisories"
cargo_deny=$(cargo_tool cargo-deny "$CARGO_DENY_VERSION")
# deny CHECK...: runs these checks of cargo-deny.
deny() { "$cargo_deny" --all-features check --hide-inclusion-graph "$@"; }
deny bans licenses sources
# The database of advisories is on the network. If it cannot be reached, everything else is still checked. A release fails then
# (step audit of release.sh).
if output=$(timeout 60 "$cargo_deny" --all-features fetch db 2>&1); then
	deny --disable-fetch advisories
else
	printf '%s\n' "$output" | tail -n 1
	echo "the database of advisories cannot be reached: dependencies were NOT checked for known vulnerabilities"
fi

stage "Library tests, and those of the repository"
# With the features of `make test`, so that nothing is compiled twice.
cargo test --workspace --features cloudmap-mcs-integration/e2e --lib --test repository --no-fail-fast

printf '\n%scheck passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
