# The subcommands.

command_check() {
	require_prerequisites
	say "everything that must be here is; 'testbed build' installs and compiles the rest into $CACHE"
}

command_build() {
	require_prerequisites
	mkdir -p "$CACHE"
	install_packages
	build
	kubernetes_build
	say "built: $CACHE"
}

# one_at_a_time: no two commands change the same testbed at once.
one_at_a_time() {
	mkdir -p "$REGISTRY"
	exec 9>"$REGISTRY/$(basename "$STATE").lock"
	flock -n 9 || { say "waiting for another command of this checkout"; flock 9; }
}

command_peer() {
	[ $# -eq 1 ] && [[ " $(peers | xargs) " == *" $1 "* ]] || fail "peer takes one of: $(peers | xargs)"
	# It is compiled, and not run here: no root, nor anything else of the testbed.
	command -v go >/dev/null && go_fetches_go || fail "$1 is compiled, which needs Go 1.24 or later (https://go.dev/dl)"
	peer_build "$1"
	echo "$(peer_folder "$1")/$1"
}

# raise_limits: of the kernel, for which there is no namespace, and only upwards.
raise_limits() {
	local setting least
	while read -r setting least; do
		[ "$(sysctl -n "$setting")" -ge "$least" ] || sysctl -qw "$setting=$least"
	done <<-EOF
		fs.inotify.max_user_instances 8192
		fs.inotify.max_user_watches 524288
		fs.inotify.max_queued_events 16384
	EOF
	modprobe -a overlay nf_tables 2>/dev/null || true
}

command_up() {
	local clusters=2 cluster reason boots=() boot failed=
	while [ $# -gt 0 ]; do
		case $1 in
		--clusters) [[ ${2:-} =~ ^[1-$MAX_CLUSTERS]$ ]] || fail "--clusters takes a number from 1 to $MAX_CLUSTERS"; clusters=$2; shift ;;
		--clusters=[1-$MAX_CLUSTERS]) clusters=${1#*=} ;;
		*) fail "up does not take '$1'" ;;
		esac
		shift
	done
	command_build
	slot_held
	one_at_a_time
	slot_claim
	mkdir -p "$STATE/host"
	raise_limits
	cgroup_delegate
	host_stop_all
	network_up
	for ((cluster = 1; cluster <= clusters; cluster++)); do
		reason=$(cluster_healthy "$cluster") && { say "cluster $cluster is up already: context $(context "$cluster")"; continue; }
		say "booting cluster $cluster ($reason)"
		(
			cluster_remove "$cluster"
			cluster_boot "$cluster"
		) &
		boots+=($!)
	done
	for boot in ${boots[@]+"${boots[@]}"}; do wait "$boot" || failed=yes; done
	[ -z "$failed" ] || fail "not every cluster came up (see above)"
	for cluster in $(clusters_present); do
		[ "$cluster" -le "$clusters" ] || cluster_healthy "$cluster" >/dev/null || cluster_remove "$cluster"
	done
	kubeconfig_merge
	say "up. kubectl: KUBECONFIG=$STATE/kubeconfig; all settings: eval \"\$(testbed env)\""
}

command_down() {
	local option=${1:-} slot
	[ "$(id -u)" -eq 0 ] || fail "down needs root"
	case $option in
	'') slot_held ;;
	--all)
		for slot in $(checkout_slots); do (command_down --slot "$slot"); done
		for FLAVOUR in apiservers full; do (command_down); done
		return
		;;
	--slot)
		[ -f "$REGISTRY/slot-${2:-}" ] || fail "--slot takes the number of a slot in use: $(cd "$REGISTRY" 2>/dev/null && echo slot-*)"
		slot_use "$2"
		;;
	*) fail "down does not take '$option'" ;;
	esac
	one_at_a_time
	[ "$option" = --slot ] || slot_held
	if [ -n "${SLOT:-}" ]; then
		cgroup_kill "$SLOT"
		network_down
	fi
	rm -rf --one-file-system "$STATE"
	rmdir --ignore-fail-on-non-empty "$(dirname "$STATE")" 2>/dev/null || true
	[ -z "${SLOT:-}" ] || slot_release
	say "down ($FLAVOUR): nothing of it is left"
}

# require_up: for commands that work on a running testbed.
require_up() {
	slot_held
	[ -n "$SLOT" ] && [ -f "$STATE/kubeconfig" ] || fail "no testbed is up ($FLAVOUR): run 'testbed up' first"
}

command_status() {
	local cluster reason file name
	slot_held
	[ -n "$SLOT" ] || { echo "down"; return 1; }
	echo "slot $SLOT, state in $STATE"
	for cluster in $(clusters_present); do
		if reason=$(cluster_healthy "$cluster"); then
			echo "cluster $cluster: up, context $(context "$cluster"), $(server "$cluster")"
		else
			echo "cluster $cluster: $reason"
		fi
		for file in "$(cluster_folder "$cluster")"/node-*/pids/*; do
			printf '  %-32s log %s\n' "$(component_names "$file")" "${file/\/pids\///log/}.log"
		done
	done
	for file in "$STATE"/host/*.pid; do
		[ -f "$file" ] || continue
		name=$(basename "$file" .pid)
		is_ours "$(cat "$file")" && echo "host process $name: pid $(cat "$file"), log $STATE/host/$name.log" || echo "host process $name: ended"
	done
}

command_env() {
	local contexts=() cluster ipv6='' direct
	require_up
	direct=$(no_proxy_for "$HOST_IP,$NET4.0.0/16,$NET6::/48")
	for cluster in $(clusters_present); do
		if has "$cluster" ipv4; then contexts+=("$(context "$cluster")"); else ipv6=$(context "$cluster"); fi
	done
	cat <<EOF
export KUBECONFIG='$STATE/kubeconfig'
export CONTEXTS='$(IFS=,; echo "${contexts[*]}")'
export TESTBED_HOST_IP='$HOST_IP'
export TESTBED_HOST_IP6='$HOST_IP6'
export TESTBED_IPV6_CONTEXT='$ipv6'
export TESTBED_STATE='$STATE'
export TESTBED_SLOT='$SLOT'
export TESTBED_AGNHOST_IMAGE='$AGNHOST_IMAGE'
export NO_PROXY='$direct'
export no_proxy='$direct'
EOF
}

# no_proxy_for ADDRESSES: prints NO_PROXY with these. A proxy that builds need does not reach the testbed. (The host's address
# is there twice, because curl before 7.86 takes no ranges.)
no_proxy_for() {
	local others=${NO_PROXY:-${no_proxy:-}}
	case ,$others, in
	',*,' | *",$1,"*) echo "$others" ;;
	*) echo "${others:+$others,}$1" ;;
	esac
}

command_image() {
	[ $# -ge 3 ] || fail "image takes NAME:TAG OUT.tar BINARY [FILE=/PATH...]"
	image_of_binary "$@"
}

command_load_image() {
	local cluster node tars=() tar loaders=() loader
	[ $# -gt 0 ] || fail "load-image takes the files to import"
	require_up
	for tar in "$@"; do [ -f "$tar" ] || fail "no such file: $tar"; tars+=("$(realpath "$tar")"); done
	for cluster in $(clusters_present); do
		for node in $(nodes "$cluster"); do
			images_load "$cluster" "$node" "${tars[@]}" &
			loaders+=($!)
		done
	done
	for loader in "${loaders[@]}"; do wait "$loader"; done
	say "imported $* into every node"
}

# For images of others that cannot be pulled here, and of which only the usual tools are needed: agnhost's, socat and nc.
command_stand_in() {
	local root name program tars=()
	[ $# -gt 0 ] || fail "stand-in takes the names of images"
	require_up
	root=$STATE/stand-in
	for program in socat nc; do
		command -v $program >/dev/null || DEBIAN_FRONTEND=noninteractive quietly "$CACHE/apt.log" \
			apt-get install -y --no-install-recommends socat netcat-openbsd
	done
	rm -rf "$root"
	mkdir -p "$root"
	(build_agnhost_root "$root/root" "$(components_folder)/agnhost")
	for program in socat nc; do
		rm -f "$root/root/bin/$program"
		image_add_program "$root/root" "$(command -v $program)" "/usr/bin/$program"
	done
	for name in "$@"; do
		tars+=("$root/$(digest <(echo "$name")).tar")
		image_pack "${tars[-1]}" "$root/root" "$name" '{"Cmd": ["/bin/sh"]}'
	done
	command_load_image "${tars[@]}"
	rm -rf "$root"
}

command_exec() {
	local place=${1:-}
	[[ $place =~ ^[1-9]/node-[12]$ ]] || fail "exec takes CLUSTER/NODE -- CMD..., for example 1/node-1"
	shift
	[ "${1:-}" != -- ] || shift
	require_up
	in_machine "${place%%/*}" "${place##*-}" "$@"
}

command_run_host() {
	local name=${1:-} folder=
	[[ $name =~ ^[a-z0-9][a-z0-9-]*$ ]] && [ "${2:-}" = -- ] && [ $# -ge 3 ] ||
		fail "run-host takes NAME -- CMD..., the name in lower-case letters, digits and '-'"
	shift 2
	require_up
	one_at_a_time
	host_stop "$name"
	folder=$STATE/host
	mkdir -p "$folder"
	: >"$folder/$name.log"
	spawn "$SLOT/host/$name" "$folder/$name.log" "$@" >"$folder/$name.pid"
	sleep 0.3
	is_ours "$(cat "$folder/$name.pid")" || { show_log "$folder/$name.log"; host_stop "$name"; fail "$name ended at once"; }
	say "$name runs: pid $(cat "$folder/$name.pid"), log $folder/$name.log"
}

command_stop_host() {
	[ $# -eq 1 ] || fail "stop-host takes the name that run-host was given"
	require_up
	one_at_a_time
	host_stop "$1"
}

command_restart_apiserver() {
	require_up
	local cluster=${1:-} away=${2:-0}
	cluster=${cluster#mcs-}
	[ $# -le 2 ] && [[ $away =~ ^[0-9]+$ ]] && [[ " $(clusters_present | xargs) " == *" $cluster "* ]] ||
		fail "restart-apiserver takes the number of a cluster, or its context, and for how many seconds it is away"
	one_at_a_time
	apiserver_restart "$cluster" "$away"
}

# host_stop NAME: asks it to end, and after five seconds ends it. Its log stays.
host_stop() {
	local cgroup=$SLOT/host/$1
	if [ -n "$(cgroup_members "$cgroup")" ]; then
		cgroup_members "$cgroup" | xargs -r kill -TERM 2>/dev/null || true
		wait_until 5 cgroup_empty "$cgroup" || true
	fi
	cgroup_kill "$cgroup"
	rm -f "$STATE/host/$1.pid"
}

# host_stop_all: what a run before this one left.
host_stop_all() {
	local file name
	for file in "$STATE"/host/*.pid; do
		[ -f "$file" ] || continue
		name=$(basename "$file" .pid)
		say "stopping $name of an earlier run"
		host_stop "$name"
	done
	cgroup_kill "$SLOT/host"
}
