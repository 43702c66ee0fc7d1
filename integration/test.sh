#!/usr/bin/env bash
# All tests (`make test`): first `make check`, then the other tests on this machine, then those on three real clusters.
#
# Usage: integration/test.sh
#
#   CONTEXTS=a,b[,c]  run the conformance suite and the end-to-end tests on clusters one has: see clusters.sh;
#                     CLOUDMAP_ENDPOINT must then name an emulator that both the pods and this machine reach
#   TESTS=...         only the checks and end-to-end tests whose names contain this, and no others
#   THREADS=n         so many of them at once
#   REPORT=path       the conformance report is written to <path>.md and <path>.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
. integration/clusters.sh

clusters_check
[ -z "$GIVEN_CONTEXTS" ] || [ -n "${CLOUDMAP_ENDPOINT:-}" ] ||
	fail "tests look into the emulator: CLOUDMAP_ENDPOINT names it (cloudmap-emulator --listen), as the pods and this machine reach it"

finish() {
	local status=$?
	trap - EXIT INT TERM
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
		clusters_logs
	fi
	clusters_down || true
	if [ "$status" -eq 0 ]; then
		printf '\n%sall tests passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	else
		[ ! -s "$MCS_E2E_FAILURES" ] || { printf '\n%swhy scenarios failed%s\n\n' "$BOLD" "$PLAIN" && cat "$MCS_E2E_FAILURES"; }
		printf '\n%stests failed%s after %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	fi
	rm -f "$MCS_E2E_FAILURES"
	exit "$status"
}
MCS_E2E_FAILURES=$(mktemp)
export MCS_E2E_FAILURES
trap finish EXIT
trap 'INTERRUPTED=yes; exit 130' INT
trap 'INTERRUPTED=yes; exit 143' TERM

use_target
export "${OFFLINE_AWS[@]}"
# The same features for all runs of cargo, so that nothing is compiled twice.
readonly CARGO_CLUSTERS=(cargo test --workspace --features cloudmap-mcs-integration/e2e)
# The pinned one, or where there is no testbed the one that one has.
if [ -z "${HELM:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then HELM=$("$TESTBED" peer helm); else HELM=$(type -P helm || echo skip); fi
fi
export HELM
PROMTOOL=${PROMTOOL:-$(promtool)}
[ -n "${LUA:-}" ] || type -P lua5.4 lua >/dev/null || packages lua5.4 || true
LUA=${LUA:-$(type -P lua5.4 || type -P lua || echo skip)}
export PROMTOOL LUA
# On clusters that one has, the page is looked at where there is a ChromeDriver.
if [ -z "${CHROMEDRIVER:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then CHROMEDRIVER=$(chromedriver); else CHROMEDRIVER=$(type -P chromedriver || echo skip); fi
fi
export CHROMEDRIVER

if [ -z "${TESTS:-}" ]; then
	integration/check.sh
	stage "Simulation, adapter and emulator tests"
	if [ -x integration/moto.sh ]; then
		MOTO_SERVER=$(integration/moto.sh)
		export MOTO_SERVER
	fi
	# All but the library's, which the check has run, and those on clusters, which come later.
	tests=()
	for test in integration/tests/*; do
		test=$(basename "$test" .rs)
		case $test in conformance | e2e) ;; *) tests+=(--test "$test") ;; esac
	done
	cargo test --workspace --no-fail-fast --bins "${tests[@]}"
	cargo test --workspace --no-fail-fast --doc
fi

stage "Compiling the tests on clusters, and release builds of the controller and the emulator"
"${CARGO_CLUSTERS[@]}" --test conformance --test e2e --no-run
build_release
if [ -z "$GIVEN_CONTEXTS" ]; then
	MCS_E2E_EXTERNAL_DNS=$("$TESTBED" peer external-dns)
	MCS_E2E_AWS_MCS_CONTROLLER=$("$TESTBED" peer aws-mcs-controller)
	export MCS_E2E_EXTERNAL_DNS MCS_E2E_AWS_MCS_CONTROLLER
fi

if [ -z "${TESTS:-}" ]; then
	stage "Simulations: the ledger's machines"
	"$CARGO_TARGET_DIR/release/ledger-simulation" --seeds 150
	stage "Simulations: whole controllers"
	"$CARGO_TARGET_DIR/release/controller-simulation" --seeds 40
fi

clusters_up 3
stage "Cloud Map emulator and controller"
# Slow enough that what happens at once in memory does not hide what does not in AWS; quotas for a namespace a scenario.
registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --max-namespaces 1000 --call-latency 5ms-20ms \
	--operation-latency 100ms-300ms --replicas 2 --discovery-lag 0s-500ms
image_up "$CARGO_TARGET_DIR/release/cloudmap-mcs"
export PROGRAM=$CARGO_TARGET_DIR/release/cloudmap-mcs
controllers_install

tests_environment

# wanted TEST: whether there is a test of this name.
wanted() {
	# Into a variable first: grep ends at the first match, and cargo would fail at the closed pipe.
	local tests
	[ -z "${TESTS:-}" ] || { tests=$("${CARGO_CLUSTERS[@]}" --quiet --test "$1" -- --list) && grep -q -- "$TESTS" <<<"$tests"; }
}

FAILED=
SUITES=
for suite in conformance e2e; do
	if wanted "$suite"; then SUITES+=" $suite"; fi
done
if [ -z "$SUITES" ]; then
	echo "no test on clusters has \"$TESTS\" in its name" >&2
	exit 1
fi
if [[ $SUITES == *conformance* ]]; then
	stage "Conformance suite"
	export MCS_CONFORMANCE_DISRUPTIVE=1 MCS_CONFORMANCE_THREADS=${THREADS:-4} MCS_CONFORMANCE_REPORT=${REPORT:-$ROOT/target/conformance-report}
	"${CARGO_CLUSTERS[@]}" --quiet --test conformance -- ${TESTS:+"$TESTS"} || FAILED=yes
	echo "report: $MCS_CONFORMANCE_REPORT.md and .json"
fi
if [[ $SUITES == *e2e* ]]; then
	stage "End-to-end tests"
	# Names in Cloud Map and ECS tasks need a network of our own; the chart's scenario installs the controller anew.
	own_network=(--skip ecs:: --skip replaced:: --skip chart::)
	"${CARGO_CLUSTERS[@]}" --test e2e -- --test-threads="${THREADS:-4}" ${GIVEN_CONTEXTS:+"${own_network[@]}"} ${TESTS:+"$TESTS"} || FAILED=yes
fi
[ -z "$FAILED" ] || exit 1
