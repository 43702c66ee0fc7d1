#!/usr/bin/env bash
# All tests (`make test`): first `make check`, then the other tests on this machine, then those on nine real clusters.
#
# Usage: integration/test.sh
#
#   CONTEXTS=a,b[,c]  run the conformance suite and the end-to-end tests on clusters one has: see clusters.sh;
#                     CLOUDMAP_ENDPOINT must then name an emulator that both the pods and this machine reach
#   TESTS=...         only the checks and end-to-end tests whose names contain this, and no others
#   SUITES=name       only this suite on clusters, conformance or e2e, and nothing else; docker runs the Dockerfile and the
#                     quick start with kind, see docker.sh
#   KUBERNETES=1.30   clusters of this version: see the testbed's README.md
#   THREADS=n         so many of them at once
#   REPORT=path       the conformance report is written to <path>.md and <path>.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
. integration/clusters.sh

case ${SUITES:-} in
'' | conformance | e2e) ;;
docker) exec integration/docker.sh ;;
*) misused "SUITES is '$SUITES'; there are conformance, e2e and docker, and without it the first two" ;;
esac
clusters_check
[ -z "$GIVEN_CONTEXTS" ] || [ -n "${CLOUDMAP_ENDPOINT:-}" ] ||
	fail "tests look into the emulator: CLOUDMAP_ENDPOINT names it (cloudmap-emulator --listen), as the pods and this machine reach it"

# what_failed: says it again at the end, because the logs of the clusters come between.
what_failed() {
	local job
	[ ${#FAILED[@]} -gt 0 ] || FAILED=("$ENDED_BY, in: $STAGE")
	printf '\n%swhat failed%s\n' "$BOLD" "$PLAIN"
	printf -- '- %s\n' "${FAILED[@]}"
	for job in "${BESIDE[@]}"; do
		grep -hE '^test .* FAILED$|panicked at|error:|[1-9][0-9]* failed' "${job##*:}" | head -n 20 || true
	done
}

finish() {
	local status=$1 job program
	for job in "${BESIDE[@]}"; do kill -- "-${job%%:*}" 2>/dev/null || true; done
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
		clusters_logs
	fi
	clusters_down || true
	[ -n "$GIVEN_CONTEXTS" ] || TESTBED_NAME=$CONFORMANCE_TESTBED "$TESTBED" down || true
	if [ "$status" -eq 0 ]; then
		printf '\n%sall tests passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
		for program in HELM PROMTOOL LUA CHROMEDRIVER COREDNS MOTO_SERVER POLICY_TOOLS; do
			[ "${!program:-}" != skip ] || echo "$program=skip: what needs it was NOT tested"
		done
	else
		what_failed
		[ ! -s "$MCS_E2E_FAILURES" ] || { printf '\n%swhy scenarios failed%s\n\n' "$BOLD" "$PLAIN" && cat "$MCS_E2E_FAILURES"; }
		printf '\n%stests failed%s after %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	fi
	rm -f "$MCS_E2E_FAILURES" "${BESIDE[@]##*:}"
}
MCS_E2E_FAILURES=$(mktemp)
readonly CONFORMANCE_TESTBED=${TESTBED_NAME:+$TESTBED_NAME-}conformance
# The process groups that run beside this one, each with its name and the file that it prints into.
BESIDE=()
# The parts that failed, and where none did, the command that ended the script.
FAILED=() ENDED_BY='' STAGE='the checks of the arguments'
trap 'ENDED_BY=$BASH_COMMAND' ERR
set -o errtrace
export MCS_E2E_FAILURES
finally finish

use_target
export "${OFFLINE_AWS[@]}"
# The same features for all runs of cargo, so that nothing is compiled twice.
readonly CARGO_TEST=(cargo test --workspace --features cloudmap-mcs-integration/e2e)
# The pinned one, or where there is no testbed the one that one has.
if [ -z "${HELM:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then HELM=$("$TESTBED" peer helm); else HELM=$(type -P helm || echo skip); fi
fi
export HELM
# What says whether a Corefile is one.
if [ -z "${COREDNS:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then COREDNS=$("$TESTBED" peer stock-coredns); else COREDNS=$(type -P coredns || echo skip); fi
fi
export COREDNS
PROMTOOL=${PROMTOOL:-$(promtool)}
LUA=${LUA:-$(lua)}
export PROMTOOL LUA
# On clusters that one has, the page is looked at where there is a ChromeDriver.
if [ -z "${CHROMEDRIVER:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then CHROMEDRIVER=$(chromedriver); else CHROMEDRIVER=$(type -P chromedriver || echo skip); fi
fi
export CHROMEDRIVER

if [ -z "${TESTS:-}${SUITES:-}" ]; then
	integration/check.sh
	MOTO_SERVER=${MOTO_SERVER:-$(integration/moto.sh)}
	export MOTO_SERVER
fi

# All but the library's, which the check has run, and those on clusters, which come later.
other_tests() {
	local test tests=()
	for test in integration/tests/* integration/emulator/tests/*; do
		test=$(basename "$test" .rs)
		case $test in conformance | e2e) ;; *) tests+=(--test "$test") ;; esac
	done
	"${CARGO_TEST[@]}" --no-fail-fast --bins "${tests[@]}" "$@"
}

stage "Compiling the other tests, and release builds of the controller, the emulator and the simulations"
"${CARGO_TEST[@]}" --test conformance --test e2e --no-run
[ -n "${TESTS:-}${SUITES:-}" ] || other_tests --no-run
build_release --bin cloudmap-mcs --bin cloudmap-emulator --bin ledger-simulation --bin controller-simulation --bin cutover-bench
if [ -z "${TESTS:-}${SUITES:-}" ] && [ "${POLICY_TOOLS:-}" != skip ]; then
	stage "IAM policies"
	integration/policies.sh "$CARGO_TARGET_DIR/release/cloudmap-mcs"
fi
if [ -z "$GIVEN_CONTEXTS" ]; then
	MCS_E2E_EXTERNAL_DNS=$("$TESTBED" peer external-dns)
	MCS_E2E_AWS_MCS_CONTROLLER=$("$TESTBED" peer aws-mcs-controller)
	export MCS_E2E_EXTERNAL_DNS MCS_E2E_AWS_MCS_CONTROLLER
fi

# Names in Cloud Map and ECS tasks need a network of our own, IP families a cluster of each kind; the chart's scenario installs
# the controller anew.
OWN_NETWORK=()
[ -z "$GIVEN_CONTEXTS" ] || OWN_NETWORK=(--skip ecs:: --skip replaced:: --skip families:: --skip chart::)
readonly OWN_NETWORK

# wanted SUITE: whether it has a test that TESTS names and that can run here. TESTS is text, as the test harness takes it.
wanted() {
	# Into a variable first: grep ends at the first match, and cargo would fail at the closed pipe.
	local tests left_out=()
	[ -n "${TESTS:-}" ] || return 0
	[ "$1" != e2e ] || left_out=("${OWN_NETWORK[@]}")
	tests=$("${CARGO_TEST[@]}" --quiet --test "$1" -- --list "${left_out[@]}") && grep -qF -- "$TESTS" <<<"$tests"
}

# provide N: so many clusters with the controller, and what tests on them read.
provide() {
	clusters_up "$1"
	stage "Cloud Map emulator and controller"
	# Slow enough that what happens at once in memory does not hide what does not in AWS; quotas for a namespace a scenario.
	# external-dns lists the namespaces every 3 s here and not every minute, several of them at the same time.
	registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --max-namespaces 1000 --call-latency 5ms-20ms \
		--operation-latency 100ms-300ms --replicas 2 --discovery-lag 0s-500ms --rate ListNamespaces=3/20
	other_registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --call-latency 60ms-120ms --operation-latency 100ms-300ms \
		--replicas 2 --discovery-lag 0s-500ms
	image_up "$CARGO_TARGET_DIR/release/cloudmap-mcs"
	export PROGRAM=$CARGO_TARGET_DIR/release/cloudmap-mcs
	controllers_install
	tests_environment
}

conformance() {
	stage "Conformance suite"
	conformance_environment
	export MCS_CONFORMANCE_DISRUPTIVE=1
	# The testbed has all that checks need, unless its Kubernetes is another one.
	[ -n "$GIVEN_CONTEXTS${KUBERNETES:-}" ] || export MCS_CONFORMANCE_COMPLETE=1
	"${CARGO_TEST[@]}" --quiet --test conformance -- ${TESTS:+"$TESTS"} || return
	echo "report: $MCS_CONFORMANCE_REPORT.md and .json"
}

# The checks stop controllers, and so do end-to-end scenarios. So they have clusters of their own where both run.
conformance_beside() {
	export TESTBED_NAME=$CONFORMANCE_TESTBED
	provide 3
	conformance || {
		clusters_logs
		return 1
	}
	clusters_down
}

# One API server and no nodes. After the conformance suite, so that not everything begins at the same time.
cutovers_beside() {
	stage "Cutovers of 20 services under load"
	# Some seconds more than the emulator's name servers are behind, so that a machine that stands still fails nothing. What gRPC,
	# nginx and HAProxy do changes with their versions, not with the controller: they run where they are, and nothing is fetched.
	# Steps of 90 s have enough answers also where clients reach only half of the rate.
	SETTLE=15 FETCH=no integration/cutover-bench.sh --rate 100 --every 90
}

suites_beside() {
	conformance_beside
	cutovers_beside
}

# What needs no cluster.
others_beside() {
	local failed=0
	stage "Adapter and emulator tests"
	PROGRAM=$CARGO_TARGET_DIR/release/cloudmap-mcs other_tests || failed=1
	"${CARGO_TEST[@]}" --no-fail-fast --doc || failed=1
	return "$failed"
}

# They compute without a pause, and whatever waits for an answer goes first: so they have the lowest priority, in a session of
# their own. Where Linux groups processes by session, a priority counts only within a session, and the group has its own.
simulations_beside() {
	local log
	log=$(mktemp)
	# shellcheck disable=SC2016 # The other shell expands it.
	setsid bash -c '
		{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true
		renice -n 19 "$$" >/dev/null
		failed=0
		printf "\n== Simulations: the machines of the ledger\n"
		"$1/ledger-simulation" --seeds 60 || failed=1
		printf "\n== Simulations: whole controllers\n"
		"$1/controller-simulation" --seeds 10 || failed=1
		exit "$failed"
	' bash "$CARGO_TARGET_DIR/release" >"$log" 2>&1 </dev/null &
	BESIDE+=("$!:simulations:$log")
}

end_to_end() {
	stage "End-to-end tests"
	# The scenarios themselves know which of them may run beside each other, and how many.
	export MCS_E2E_THREADS=${THREADS:-6}
	export MCS_E2E_RESTART_API_SERVER="$TESTBED restart-apiserver"
	"${CARGO_TEST[@]}" --test e2e -- --test-threads=64 "${OWN_NETWORK[@]}" ${TESTS:+"$TESTS"}
}

# beside FUNCTION: runs it in the background, in a process group of its own, to be ended as one. What it prints comes when it is
# waited for.
beside() {
	local log
	log=$(mktemp)
	set -m
	(
		set -e
		"$1"
	) >"$log" 2>&1 </dev/null &
	BESIDE+=("$!:$1:$log")
	set +m
}

WANTED=()
for suite in ${SUITES:-conformance e2e}; do
	if wanted "$suite"; then WANTED+=("$suite"); fi
done
[ ${#WANTED[@]} -gt 0 ] || {
	echo "no test that can run on these clusters has \"$TESTS\" in its name" >&2
	exit 1
}
case "${WANTED[*]}" in
conformance)
	provide 3
	conformance || FAILED+=("Conformance suite")
	;;
e2e)
	provide 6
	end_to_end || FAILED+=("End-to-end tests")
	;;
*)
	# On clusters that one has, one after the other.
	if [ -z "$GIVEN_CONTEXTS" ]; then
		"$TESTBED" build
		if [ -z "${TESTS:-}" ]; then beside suites_beside; else beside conformance_beside; fi
	fi
	provide 6
	if [ -z "${TESTS:-}" ]; then
		beside others_beside
		simulations_beside
	fi
	[ -z "$GIVEN_CONTEXTS" ] || conformance || FAILED+=("Conformance suite")
	end_to_end || FAILED+=("End-to-end tests")
	for job in "${BESIDE[@]}"; do
		IFS=: read -r pid name log <<<"$job"
		wait "$pid" || FAILED+=("$name")
		cat "$log"
	done
	;;
esac
[ ${#FAILED[@]} -eq 0 ] || exit 1
