#!/usr/bin/env bash
# What the benchmarks ask of the machine: replicas of the controllers, a cut between their leaders, and an API server that
# starts again. integration/bench.sh and cutover-bench.sh export the settings that this needs, and call it, too.
#
# Usage: integration/bench-host.sh replica CLUSTER NUMBER | peer CLUSTER | apiserver CLUSTER | cut | heal
#
#   replica CLUSTER NUMBER   starts a replica of that cluster's controller and prints its line for the benchmark
#   peer CLUSTER             starts the AWS controller for that cluster and prints the same
#   apiserver CLUSTER        ends that cluster's API server as a crash does, and starts it again
#   cut                      loses all packets between leaders
#   heal                     ends that
set -euo pipefail

# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"

# Where leaders listen for each other: no other process of the machine does.
readonly STREAM_PORTS=7940-7999

context() { cut -d, -f"$1" <<<"$CONTEXTS"; }

# line CLUSTER PROCESS ADMIN: what the benchmark must know of a controller. The address is the last field.
line() {
	local pids=$TESTBED_STATE/cluster-$1/node-1/pids
	echo "id=bench-$1,context=$(context "$1"),pid=$(cat "$TESTBED_STATE/host/$2.pid"),servers=$(cat "$pids/kube-apiserver")+$(cat "$pids/etcd"),admin=$3"
}

# run_host NAME CLUSTER CMD...: the access key id equals the cluster id, so that the emulator can tell callers apart.
run_host() {
	local name=$1 id=bench-$2
	shift 2
	"$TESTBED" run-host "$name" --apiservers-only -- env AWS_ACCESS_KEY_ID="$id" AWS_SECRET_ACCESS_KEY=emulator \
		AWS_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null \
		AWS_SHARED_CREDENTIALS_FILE=/dev/null NO_PROXY='*' "$@" >&2
}

# SEEING FILE PATH CMD...: a command, for which FILE is at PATH.
# shellcheck disable=SC2016
readonly SEEING=(unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"')

# replica CLUSTER NUMBER: the allocator is set as in config/manager. With RESOLVER, it resolves names there, as a pod does.
replica() {
	local name=controller-$1-$2 admin=$TESTBED_HOST_IP:87$1$2 resolver=$TESTBED_STATE/host/controller-$1-$2.resolv seeing=()
	if [ -n "${RESOLVER:-}" ]; then
		echo "nameserver $RESOLVER" >"$resolver"
		seeing=("${SEEING[@]}" "$resolver" /etc/resolv.conf)
	fi
	run_host "$name" "$1" MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=131072 "${seeing[@]}" "$CONTROLLER" run --log "${LOG:-warn}" --kubeconfig "$KUBECONFIG" \
		--context "$(context "$1")" --cluster-id "bench-$1" --clusterset-id bench --cloudmap-endpoint "$EMULATOR" \
		--listen "$admin" --stream "${STREAM:-auto}" --stream-addresses "$TESTBED_HOST_IP" --stream-port "79$((3 + $1))$2"
	line "$1" "$name" "http://$admin"
}

# peer CLUSTER: the SDK of Go puts `data-` before the host of the endpoint, so this needs names, which only it sees.
peer() {
	local name=peer-$1 hosts=$TESTBED_STATE/host/peer-hosts config=$TESTBED_STATE/host/peer-$1.kubeconfig
	echo "$TESTBED_HOST_IP servicediscovery.testbed data-servicediscovery.testbed" >"$hosts"
	kubectl --context "$(context "$1")" config view --minify --flatten >"$config"
	run_host "$name" "$1" KUBECONFIG="$config" AWS_ENDPOINT_URL="http://servicediscovery.testbed:${EMULATOR##*:}" \
		"${SEEING[@]}" "$hosts" /etc/hosts \
		"$CONTROLLER" --metrics-bind-address "$TESTBED_HOST_IP:87${1}1" --health-probe-bind-address "$TESTBED_HOST_IP:87${1}2"
	line "$1" "$name" "http://$TESTBED_HOST_IP:87${1}1"
}

# cut: a table of its own, on the addresses of this testbed alone.
cut_off() {
	heal
	nft -f - <<-EOF
		table ip $(table) {
			chain input {
				type filter hook input priority filter; policy accept;
				ip saddr $TESTBED_HOST_IP ip daddr $TESTBED_HOST_IP tcp dport $STREAM_PORTS drop
				ip saddr $TESTBED_HOST_IP ip daddr $TESTBED_HOST_IP tcp sport $STREAM_PORTS drop
			}
		}
	EOF
}

table() { echo "cloudmap_mcs_bench_$TESTBED_SLOT"; }

heal() { ! nft list table ip "$(table)" >/dev/null 2>&1 || nft delete table ip "$(table)"; }

case ${1:-} in
replica) [ $# -eq 3 ] || misused "replica takes the numbers of a cluster and of a replica"; replica "$2" "$3" ;;
peer) [ $# -eq 2 ] || misused "peer takes the number of a cluster"; peer "$2" ;;
apiserver)
	[ $# -eq 2 ] || misused "apiserver takes the number of a cluster"
	"$TESTBED" restart-apiserver --apiservers-only "$2" >&2
	;;
cut) cut_off ;;
heal) heal ;;
*) misused "there is no command '${1:-}'" ;;
esac
