#!/usr/bin/env bash
# Simulates the ledger's machines and whole controllers, as many seeds of each scenario as one asks for, on all cores
# (`make soak SEEDS=n`), and prints the tables of docs/testing.md; or, with arguments, the simulation of whole controllers
# with these.
#
# Usage: integration/soak.sh [--seeds 100] [--scenario NAME] [--start SEED] [--threads N] [--limit SECONDS]
#        integration/soak.sh --scenario NAME --seed SEED [--trace] [--shrink] [--steps 0,3,7] [--log FILTER]
#
#   SEEDS=n   seeds of each scenario of whole controllers, and five times as many of the ledger's [default: 100]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
use_target
build_release --quiet --bin ledger-simulation --bin controller-simulation

if [ $# -gt 0 ]; then
	exec "$CARGO_TARGET_DIR/release/controller-simulation" "$@"
fi
readonly SEEDS=${SEEDS:-100}
status=0
stage "The ledger's machines"
"$CARGO_TARGET_DIR/release/ledger-simulation" --seeds $((SEEDS * 5)) || status=1
stage "Whole controllers"
"$CARGO_TARGET_DIR/release/controller-simulation" --seeds "$SEEDS" || status=1
exit "$status"
