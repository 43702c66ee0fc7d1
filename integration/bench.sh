#!/usr/bin/env bash
# Starts two API servers and the Cloud Map emulator, runs one controller per API server as a process on this machine, and
# prints the figures of docs/benchmarks.md on standard output, one line of JSON per figure.
#
# Usage: integration/bench.sh [--figures image,small,large,instances,idle,memory,change,direct,instance,cut,sustained,rollout,failover]
#                             [--services 1000] [--endpoints 10] [--changes 300] [--idle 120] [--rate 100]
#                             [--sustained 120] [--failovers 2] [--seed 1]
#        integration/bench.sh --figures small,large,direct-arrival [--services 300]
#        integration/bench.sh --figures clusters [--clusters 2,10,100] [--clusters-for 60] [--imported 0]
#
#   PROFILE=aws       the times of AWS: operations of one to three seconds, discovery that lags up to five
#   STREAM=off        leaders do not tell each other their endpoints: the registry alone
#   CONTROLLER=FILE   measure this binary instead of building one
#   PEER=aws-mcs-controller
#                     measure the AWS Cloud Map MCS Controller for K8s instead, with small, large, instances, change or direct
#   LOGS=FOLDER       keep the logs of the controllers there
#   LOG=FILTER        what the controllers log [default: warn]
#
# Everything that it starts is in the testbed's control group. It ends with this script, or with the next run if this one
# is killed.
set -euo pipefail

# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"

# shellcheck source=integration/apiservers.sh
. "$ROOT/integration/apiservers.sh"

finish() {
	local status=$1 failed=
	# 1 also means that a target is missed.
	if [ "$status" -gt 1 ] || { [ "$status" -eq 1 ] && [ -z "${MEASURED:-}" ]; }; then failed=yes; fi
	host_logs "$failed"
	[ -z "${WORK:-}" ] || rm -rf "$WORK"
	[ -z "${TESTBED_SLOT:-}" ] || "$HOST_SCRIPT" heal || true
	testbed down
}

# prepare CLUSTER: what a cluster has before its controller starts.
prepare() {
	local context
	context=$(cut -d, -f"$1" <<<"$CONTEXTS")
	crds_apply "$context" "$CRDS"
	[ -n "${PEER:-}" ] || return 0
	kubectl --context "$context" apply -f - >&2 <<-EOF
		{apiVersion: about.k8s.io/v1alpha1, kind: ClusterProperty, metadata: {name: cluster.clusterset.k8s.io}, spec: {value: bench-$1}}
		---
		{apiVersion: about.k8s.io/v1alpha1, kind: ClusterProperty, metadata: {name: clusterset.k8s.io}, spec: {value: bench}}
	EOF
}

# start CLUSTER: starts its controller and prints the line for the benchmark.
start() {
	if [ -n "${PEER:-}" ]; then "$HOST_SCRIPT" peer "$1"; else "$HOST_SCRIPT" replica "$1" 1; fi
}

main() {
	local built exporter importer setting=()
	case ${PEER:-} in
	'' | aws-mcs-controller) ;;
	*) misused "PEER is '$PEER'; there is aws-mcs-controller" ;;
	esac
	case ${PROFILE:-} in
	'') local times=(--call-latency 20ms --operation-latency 100ms) ;;
	aws) local times=(--aws-times); setting+=(--aws-times) ;;
	*) misused "PROFILE is '$PROFILE'; there is aws, and without it 20 ms a call and 100 ms an operation" ;;
	esac
	"$TESTBED" check
	alone "API servers"
	use_target
	built=$CARGO_TARGET_DIR/release
	build_release --bin bench --bin cloudmap-emulator --bin cloudmap-mcs >&2
	CRDS=$built/cloudmap-mcs
	if [ -n "${PEER:-}" ]; then
		CONTROLLER=$("$TESTBED" peer "$PEER")
		setting+=(--peer)
	elif [ -z "${CONTROLLER:-}" ]; then
		# The binary that users get.
		build_dist >&2
		CONTROLLER=$DIST
	fi
	WORK=$(mktemp -d)
	finally finish
	testbed down
	testbed up --clusters 2
	eval "$("$TESTBED" env --apiservers-only)"
	"$HOST_SCRIPT" heal
	if [ -z "${PEER:-}" ]; then
		testbed image cloudmap-mcs:bench "$WORK/image.tar" "$CONTROLLER"
		gzip --keep "$WORK/image.tar"
		setting+=(--image "$WORK/image.tar" --compressed-image "$WORK/image.tar.gz" --binary "$CONTROLLER")
	fi
	EMULATOR=http://$TESTBED_HOST_IP:8700
	export CONTROLLER EMULATOR
	testbed run-host emulator -- "$built/cloudmap-emulator" --listen "$TESTBED_HOST_IP:8700" \
		"${times[@]}" --max-instances-per-namespace 1000000
	wait_for "$EMULATOR/_emulator/health" "the emulator"
	prepare 1
	prepare 2
	exporter=$(start 1)
	importer=$(start 2)
	if [ -z "${PEER:-}" ]; then
		wait_for "${exporter##*admin=}/readyz" "the controller of cluster 1"
		wait_for "${importer##*admin=}/readyz" "the controller of cluster 2"
	fi
	MEASURED=yes
	"$built/bench" --emulator "$EMULATOR" --exporter "$exporter" --importer "$importer" --host "$HOST_SCRIPT" "${setting[@]}" \
		--stream "${STREAM:-auto}" "$@"
}

main "$@"
