#!/usr/bin/env bash
# The conformance suite (`make conformance`) on clusters that have the controller installed; docs/conformance.md.
#
#   CONTEXTS=a,b[,c]       contexts of the kubeconfig
#   CHECKS=...             only checks whose names contain this, or that show the requirement of this number
#   DISRUPTIVE=1           also those that stop controllers and change ClusterProperties for a while
#   CLOUDMAP_ENDPOINT=...  the emulator that the controllers use, if they do; without it some checks are skipped
#   REPORT=path            the report is written to <path>.md and <path>.json
#   THREADS=n              so many checks at once
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
help_asked "$@"
. integration/clusters.sh

# A testbed that is up is as good as any other cluster here.
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
export MCS_CONFORMANCE_DISRUPTIVE=${DISRUPTIVE:-} MCS_CONFORMANCE_THREADS=${THREADS:-4}
export MCS_CONFORMANCE_REPORT=${REPORT:-$ROOT/target/conformance-report}
status=0
cargo test --workspace --features cloudmap-mcs-integration/e2e --quiet --test conformance -- ${CHECKS:+"$CHECKS"} || status=$?
echo "report: $MCS_CONFORMANCE_REPORT.md and .json"
exit "$status"
