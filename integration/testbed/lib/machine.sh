# Machines: the namespaces of a node, and the components that run in them.

# machine_start CLUSTER NODE
machine_start() {
	local folder
	folder=$(node_folder "$1" "$2")
	mkdir -p "$folder/log" "$folder/pids"
	network_add_machine "$1" "$2"
	spawn "$SLOT/c$1/node-$2" "$folder/log/machine.log" nsenter --net="/run/netns/$(machine_name "$1" "$2")" \
		unshare --cgroup --mount --propagation slave "$TESTBED_DIR/lib/machine-init" "$folder" >"$folder/pids/machine"
	await "$1" 300 "machine node-$2" "$folder/log/machine.log" test -e "$folder/started"
}

# in_machine CLUSTER NODE CMD...
in_machine() {
	local target
	target=$(cat "$(node_folder "$1" "$2")/pids/machine")
	shift 2
	nsenter --target "$target" --mount --net --cgroup -- "$@"
}

# component_start CLUSTER NODE NAME CMD...: in the machine, with a clean environment: the caller's proxies are not ours. The
# components collect garbage half as often as Go has it: several clusters have fewer processors than memory.
component_start() {
	local cluster=$1 node=$2 name=$3 folder
	shift 3
	folder=$(node_folder "$cluster" "$node")
	spawn "$SLOT/c$cluster/node-$node/system" "$folder/log/$name.log" \
		nsenter --target "$(cat "$folder/pids/machine")" --mount --net --cgroup -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root GOGC=200 "$@" >"$folder/pids/$name"
}

# components_dead CLUSTER: the pid files of components that have ended.
components_dead() {
	local file
	for file in "$(cluster_folder "$1")"/node-*/pids/*; do
		[ ! -f "$file" ] || is_ours "$(cat "$file")" || echo "$file"
	done
}

# component_names PID-FILES: the same, for people: node-1/etcd node-1/kubelet
component_names() { sed 's|.*/\(node-.*\)/pids/|\1/|' <<<"$1" | paste -sd' '; }

# await CLUSTER SECONDS WHAT COMPONENTS CMD...: waits until CMD succeeds; shows the logs that say why it does not.
await() {
	local cluster=$1 deadline=$((SECONDS + $2)) what=$3 components=$4 dead file
	shift 4
	until "$@" >/dev/null 2>&1; do
		dead=$(components_dead "$cluster")
		for file in $dead; do show_log "${file/\/pids\///log/}.log"; done
		[ -z "$dead" ] || fail "cluster $cluster: $(component_names "$dead") ended; its log is above. Remedy: 'testbed down', then 'testbed up'"
		if [ "$SECONDS" -ge "$deadline" ]; then
			for file in $components; do show_log "$file"; done
			fail "cluster $cluster: $what not within its time; the logs are in $(cluster_folder "$cluster")/node-*/log. Remedy: 'testbed down', then 'testbed up'"
		fi
		sleep 0.2
	done
}
