#!/usr/bin/env bash
# Simulates the ledger's machines and whole controllers, as many seeds of each scenario as one asks for, on all cores
# (`make soak SEEDS=n`); or, with arguments, the simulation of whole controllers with these:
#
#   integration/soak.sh --seeds 100 [--scenario NAME] [--start SEED] [--threads N] [--limit SECONDS]
#   integration/soak.sh --scenario NAME --seed SEED [--trace] [--shrink] [--steps 0,3,7] [--log FILTER]
#
#   SEEDS=n   seeds of each scenario of whole controllers, and ten times as many of the ledger's [default: 100]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
help_asked "$@"
use_target

# The runtime throws dice as well: only so can they be seeded, and only then does a seed give the same run again.
export RUSTFLAGS="--cfg tokio_unstable ${RUSTFLAGS:-}"
simulation() {
	cargo run --release --quiet --package cloudmap-mcs-integration --target-dir "$CARGO_TARGET_DIR/simulation" --bin "$@"
}

if [ $# -gt 0 ]; then
	simulation controller-simulation -- "$@"
	exit
fi
readonly SEEDS=${SEEDS:-100}
stage "The ledger's machines"
simulation ledger-simulation -- --seeds $((SEEDS * 10))
stage "Whole controllers"
simulation controller-simulation -- --seeds "$SEEDS"
