#!/usr/bin/env bash
# Moves many services from ECS to pods and back, with the real controller and the real commands, while clients send requests
# (`make cutover-bench`), and prints what became of the requests, one line of JSON per figure. It takes about ten minutes.
#
# Usage: integration/cutover-bench.sh [--services 20] [--tasks 2] [--pods 2] [--ttl 10] [--steps 25,50,100] [--every 60]
#                                     [--rate 200] [--reports 30] [--keep-tasks | --trouble] [--seed 1]
#
#   SERVICES=200      the same as --services 200
#   SETTLE=15         by how many seconds clients may be late beyond the TTL [default: 30]
#   CONTROLLER=FILE   measure this binary instead of building one
#   FETCH=no          leave clients out that would have to be fetched: grpcio from PyPI, nginx and HAProxy from Debian
#   ANSWERS=yes       clients of gRPC, nginx and HAProxy log every 30 s how many answers came from tasks and from pods
#   LOGS=FOLDER       keep the logs of the controller and the emulator there
#   LOG=FILTER        what the controller logs [default: warn]
#   RUST_LOG=FILTER   what the benchmark logs; with cloudmap_mcs_integration=debug also what the commands print
#
# One API server runs, the emulator of Cloud Map with the times of AWS, one controller, and the benchmark, which has the tasks,
# the pods, the API of ECS and most clients. Tasks and pods are addresses of this machine. More clients resolve with glibc, musl,
# Go, Node, the JVM, gRPC, nginx and HAProxy, as far as this machine has them. With --trouble another replica of the controller
# stands by. All of it ends with this script, or with the next run if this one is killed.
set -euo pipefail

# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"

# shellcheck source=integration/apiservers.sh
. "$ROOT/integration/apiservers.sh"

# addresses: the half of the testbed's network in which there is nothing else: see integration/testbed/lib/slot.sh.
addresses() { echo "${TESTBED_HOST_IP%.0.1}.128.0/17"; }

finish() {
	local status=$1 failed=
	if [ "$status" -ne 0 ]; then failed=yes; fi
	host_logs "$failed"
	[ -z "${WORK:-}" ] || rm -rf "$WORK"
	[ -z "${TESTBED_HOST_IP:-}" ] || ip route delete local "$(addresses)" dev lo 2>/dev/null || true
	testbed down
}

# clients_build: a client for each runtime that is on this machine, in $WORK/clients.
clients_build() {
	local from=$ROOT/integration/clients java=(java -XX:TieredStopAtLevel=1)
	mkdir "$WORK/clients"
	echo "nameserver $TESTBED_HOST_IP" >"$WORK/resolv.conf"
	echo "hosts: files dns" >"$WORK/nsswitch.conf"
	cc -O2 -o "$WORK/client-glibc" "$from/client.c"
	client glibc "$WORK/client-glibc"
	CGO_ENABLED=0 go build -o "$WORK/client-go" "$from/client.go"
	client go "$WORK/client-go"
	if type -P musl-gcc >/dev/null || packages musl-tools; then
		musl-gcc -O2 -static -o "$WORK/client-musl" "$from/client.c"
		client musl "$WORK/client-musl"
	else
		client_missing musl "musl-gcc (Debian: musl-tools)"
	fi
	if type -P node >/dev/null; then client node node "$from/client.js"; else client_missing node "Node.js"; fi
	if type -P javac >/dev/null; then
		javac -d "$WORK" "$from/Client.java"
		# By itself it keeps addresses for 30 s. A resolver, from which it has them, may be late, too.
		[ "$SETTLE" -ge 30 ] || java+=("-Dsun.net.inetaddr.ttl=$((SETTLE / 5))")
		client jvm "${java[@]}" -cp "$WORK" Client
	else
		client_missing jvm "a JDK"
	fi
	python_clients "$from/client.py"
}

# python_clients FILE: gRPC, and proxies, which a program in Python asks.
python_clients() {
	local kind grpcio=grpcio-1.85.3 python root
	if [ -f "$CLOUDMAP_MCS_CACHE/$grpcio/complete" ] || [ "${FETCH:-}" != no ]; then
		python=$(python_tools "$grpcio" "${grpcio/-/==}") || true
	fi
	for kind in grpc-pick-first grpc-round-robin grpc-ageing; do
		if [ -n "${python:-}" ]; then
			client "$kind" "$python/python" "$1" "$kind"
		else
			client_missing "$kind" "grpcio (PyPI)"
		fi
	done
	for kind in nginx haproxy; do
		if root=$(proxy "$kind") && type -P python3 >/dev/null; then
			client "$kind" env "UNPACKED=$root" "TMPDIR=$WORK" python3 "$1" "$kind"
		else
			client_missing "$kind" "$kind (Debian: $kind), or Python 3"
		fi
	done
}

# proxy PACKAGE: prints the folder of the cache in which this package of Debian is, or nothing if it is installed. The package is
# unpacked, with what it needs, and not installed: its service would start.
proxy() {
	local folder=$CLOUDMAP_MCS_CACHE/tools/$1 work
	if type -P "$1" >/dev/null || [ -d "$folder" ]; then
		type -P "$1" >/dev/null || echo "$folder"
		return
	fi
	[ "${FETCH:-}" != no ] && command -v apt-get >/dev/null || return 1
	mkdir -p "${folder%/*}"
	work=$(mktemp -d "$folder.XXXXXX")
	if fetched "$1" "$work" >&2 && mv -T "$work/unpacked" "$folder"; then echo "$folder"; fi
	rm -rf "$work"
	[ -d "$folder" ]
}

# fetched PACKAGE FOLDER: downloads a package and what it needs and this machine lacks, and unpacks all into FOLDER/unpacked.
fetched() {
	local file download=("${APT[@]}" install -y -qq --no-install-recommends --download-only -o "Dir::Cache::archives=$2" "$1")
	chmod 755 "$2"
	mkdir "$2/partial" "$2/unpacked"
	"${download[@]}" || { "${APT[@]}" update -qq && "${download[@]}"; } || return 1
	for file in "$2"/*.deb; do dpkg -x "$file" "$2/unpacked" || return 1; done
}

# client RUNTIME COMMAND...: makes a program of the command, which resolves with the emulator in a mount namespace of its own.
client() {
	local program=$WORK/clients/$1
	shift
	cat >"$program" <<-EOF
		#!/usr/bin/env bash
		set -eu
		[ -n "\${UNSHARED:-}" ] || UNSHARED=yes exec unshare --mount "\$0" "\$@"
		for file in resolv.conf nsswitch.conf; do
			[ ! -e "/etc/\$file" ] || mount --bind "$WORK/\$file" "\$(realpath "/etc/\$file")"
		done
		exec $(printf '%q ' "$@")"\$@"
	EOF
	chmod +x "$program"
}

client_missing() { echo "$1: no client of it runs, because $2 is missing on this machine" >&2; }

main() {
	local built controller flags in_namespace
	"$TESTBED" check
	alone "API servers"
	use_target
	built=$CARGO_TARGET_DIR/release
	build_release --bin cutover-bench --bin cloudmap-emulator --bin cloudmap-mcs >&2
	CONTROLLER=${CONTROLLER:-$built/cloudmap-mcs}
	SETTLE=${SETTLE:-30}
	WORK=$(mktemp -d)
	finally finish
	testbed down
	testbed up --clusters 1
	eval "$("$TESTBED" env --apiservers-only)"
	# The machine has all of these addresses, and nobody has to add them one by one.
	ip route replace local "$(addresses)" dev lo
	# A port and a connection each.
	ulimit -n "$(ulimit -Hn)"
	EMULATOR=http://$TESTBED_HOST_IP:8700
	# What the controller of bench-host.sh does beyond its flags.
	flags=(CLOUDMAP_MCS_CUTOVERS=true CLOUDMAP_MCS_HIDE_TASKS=true "CLOUDMAP_MCS_SETTLE=${SETTLE}s")
	export CONTROLLER EMULATOR RESOLVER=$TESTBED_HOST_IP "${flags[@]}"
	testbed run-host emulator -- "$built/cloudmap-emulator" --listen "$TESTBED_HOST_IP:8700" \
		--resolver-listen "$TESTBED_HOST_IP:53" --aws-times --max-instances-per-namespace 20000 --region eu-central-1
	wait_for "$EMULATOR/_emulator/health" "the emulator"
	clients_build
	crds_apply "$CONTEXTS" "$CONTROLLER"
	# The controller is no pod here, and the commands read its flags from a Deployment.
	in_namespace=(--context "$CONTEXTS" --namespace cloudmap-mcs-system)
	kubectl "${in_namespace[@]}" create deployment cloudmap-mcs --image cloudmap-mcs >&2
	kubectl "${in_namespace[@]}" set env deployment/cloudmap-mcs "${flags[@]}" >&2
	controller=$("$HOST_SCRIPT" replica 1 1)
	wait_for "${controller##*admin=}/readyz" "the controller"
	"$built/cutover-bench" --controller "$controller" --emulator "$EMULATOR" --resolver "$TESTBED_HOST_IP" \
		--program "$CONTROLLER" --host "$HOST_SCRIPT" --clients "$WORK/clients" --addresses "${TESTBED_HOST_IP%.0.1}.128.1" \
		--settle "$SETTLE" ${SERVICES:+--services "$SERVICES"} "$@"
}

main "$@"
