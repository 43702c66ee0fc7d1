#!/usr/bin/env bash
# Runs the conformance suite (`make conformance`) on clusters that run the controller; see docs/conformance.md.
#
# Usage: integration/conformance.sh
#
#   CONTEXTS=a,b[,c]       contexts of the kubeconfig
#   CHECKS=...             only checks whose name contains this, or that verify the requirement with this number
#   DISRUPTIVE=1           also checks that stop controllers and change ClusterProperties for a while
#   CLOUDMAP_ENDPOINT=...  the emulator, if the controllers use one; without it some checks are skipped
#   REPORT=path            where to write the report: <path>.md and <path>.json
#   THREADS=n              number of checks that run at once
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
. integration/clusters.sh

# A running testbed will do as well.
GIVEN_CONTEXTS=${CONTEXTS:-}
need kubectl "kubectl 1.32 or later (https://kubernetes.io/docs/tasks/tools)" \
	cargo "a Rust toolchain (https://rustup.rs)" cc "a C compiler"
contexts_check
for context in ${GIVEN_CONTEXTS//,/ }; do
	kubectl --context "$context" -n "${MCS_E2E_SYSTEM_NAMESPACE:-$SYSTEM_NAMESPACE}" get deployment cloudmap-mcs >/dev/null ||
		fail "$context has no controller (README.md says how to install it; with the testbed, KEEP=1 make demo)"
done

use_target
export "${OFFLINE_AWS[@]}"
tests_environment
conformance_environment
export MCS_CONFORMANCE_DISRUPTIVE=${DISRUPTIVE:-}
status=0
cargo test --workspace --features cloudmap-mcs-integration/e2e --quiet --test conformance -- ${CHECKS:+"$CHECKS"} || status=$?
echo "report: $MCS_CONFORMANCE_REPORT.md and .json"
exit "$status"
