#!/usr/bin/env bash
# Runs the conformance suite of kubernetes-sigs/mcs-api, unchanged, against this controller (`make upstream-conformance`): on two
# clusters of the testbed, or on clusters that have the controller and can pull the suite's images.
#
# Usage: integration/upstream.sh
#
#   SUITE=folder     a clone of https://github.com/kubernetes-sigs/mcs-api
#   CONTEXTS=a,b     contexts of the kubeconfig: the first one exports, the others import
#   FOCUS=label      only specs with these labels, as ginkgo filters them: Required, 'DNS && !ClusterIP'
#   REPORT=path      where the suite's own report goes: <path>.html, and <path>.yaml if it writes one
#                    [default: target/upstream-report]
#   KEEP=1           leave the testbed running
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
. integration/clusters.sh

[ -n "${SUITE:-}" ] || fail "SUITE names a clone of the suite:
  git clone https://github.com/kubernetes-sigs/mcs-api && SUITE=mcs-api make upstream-conformance"
[ -f "$SUITE/conformance/go.mod" ] || fail "'$SUITE' has no conformance/go.mod: it is no clone of kubernetes-sigs/mcs-api of v0.3 or later"
SUITE=$(cd "$SUITE" && pwd)
REPORT=$(realpath -m "${REPORT:-target/upstream-report}")
readonly SUITE REPORT
need go "Go (https://go.dev/dl)" git git
clusters_check

finish() {
	local status=$1
	[ "$status" -eq 0 ] || [ "${INTERRUPTED:-}" = yes ] || clusters_logs
	[ -n "${KEEP:-}" ] || clusters_down
	rm -f "$PRINTED"
}
PRINTED=$(mktemp)
readonly PRINTED
finally finish

clusters_up 2
if [ -z "$GIVEN_CONTEXTS" ]; then
	use_target
	export "${OFFLINE_AWS[@]}"
	stage "Controller, Cloud Map emulator, and stand-ins for the suite's images"
	build_release --bin cloudmap-mcs --bin cloudmap-emulator
	registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --call-latency 5ms-20ms --operation-latency 100ms-300ms
	image_up "$CARGO_TARGET_DIR/release/cloudmap-mcs"
	controllers_install
	# Whatever images this version of the suite names.
	mapfile -t images < <(grep -hoE 'Image: +"[^"]+"' "$SUITE"/conformance/*.go | cut -d'"' -f2 | sort -u)
	[ ${#images[@]} -gt 0 ] || fail "no image is named in $SUITE/conformance"
	"$TESTBED" stand-in "${images[@]}"
fi

stage "The suite: $(git -C "$SUITE" describe --tags --always 2>/dev/null || echo "of unknown version")"
status=0
(
	cd "$SUITE/conformance"
	rm -f report.html report.yaml
	go test -v -count=1 -timeout 60m . -args -contexts "$CONTEXTS" ${FOCUS:+-ginkgo.label-filter="$FOCUS"} -ginkgo.no-color |
		tee "$PRINTED"
) || status=$?
mkdir -p "$(dirname "$REPORT")"
for kind in html yaml; do
	[ ! -f "$SUITE/conformance/report.$kind" ] || mv "$SUITE/conformance/report.$kind" "$REPORT.$kind"
done
# Ginkgo takes it for success that there is nothing to run.
! grep -q '^Ran 0 of ' "$PRINTED" || fail "no spec of the suite has the labels FOCUS='${FOCUS:-}'"
[ -f "$REPORT.html" ] || fail "the suite wrote no report"
echo "report: $REPORT.html"
(exit "$status")
