# A cluster: boot, health, removal.

# What a running cluster was booted from: another version of any of it means another boot.
cluster_key() { echo "$FLAVOUR $(kubernetes_folder) $(images_folder) $(digest "$TESTBED_DIR"/lib/* "$TESTBED_DIR"/manifests/*)"; }

# clusters_present: the numbers of the clusters that have a folder, running or not.
clusters_present() {
	local folder
	for folder in "$STATE"/cluster-*; do
		[ ! -d "$folder" ] || echo "${folder##*/cluster-}"
	done
}

# cluster_boot CLUSTER: from nothing to Ready.
cluster_boot() {
	local cluster=$1 node images loaders=() loader
	images=$(images_folder)
	mkdir -p "$(cluster_folder "$cluster")"
	pki_create "$cluster"
	machine_start "$cluster" 1
	control_plane_start "$cluster"
	if [ "$FLAVOUR" = full ]; then
		for node in $(nodes "$cluster"); do
			[ "$node" -eq 1 ] || machine_start "$cluster" "$node"
			containerd_start "$cluster" "$node"
			images_load "$cluster" "$node" "$images"/{pause,coredns,agnhost}.tar &
			loaders+=($!)
		done
	fi
	await "$cluster" 900 "the API server" "$(node_folder "$cluster" 1)/log/kube-apiserver.log" apiserver_ready "$cluster"
	if [ "$FLAVOUR" = full ]; then
		controllers_start "$cluster"
		for node in $(nodes "$cluster"); do
			kubelet_start "$cluster" "$node"
			proxy_start "$cluster" "$node"
		done
		await "$cluster" 900 "the namespace kube-system" "$(node_folder "$cluster" 1)/log/kube-apiserver.log" kube "$cluster" get namespace kube-system
		coredns_apply "$cluster"
		for loader in "${loaders[@]}"; do wait "$loader"; done
		await "$cluster" 900 "nodes Ready" "$(echo "$(cluster_folder "$cluster")"/node-*/log/kubelet.log)" cluster_nodes_ready "$cluster"
		await "$cluster" 900 "CoreDNS available" "$(echo "$(cluster_folder "$cluster")"/node-*/log/{containerd,kubelet}.log)" coredns_available "$cluster"
		await "$cluster" 900 "the default service account" "$(node_folder "$cluster" 1)/log/kube-controller-manager.log" \
			kube "$cluster" get serviceaccount default
		zones_tell "$cluster"
	fi
	cluster_key >"$(cluster_folder "$cluster")/booted"
	say "cluster $cluster is up: context $(context "$cluster"), $(server "$cluster")"
}

# zones_tell CLUSTER: has every kube-proxy hear of its node's zone. kube-proxy 1.34 may take the labels in before whoever
# wants to know of them is registered, and then tells of no label that stays the same: hints by zone would mean nothing there.
zones_tell() {
	local node
	for node in $(nodes "$1"); do
		kube "$1" label node "node-$node" topology.kubernetes.io/zone- >/dev/null
		kube "$1" label node "node-$node" "topology.kubernetes.io/zone=$(zone "$1" "$node")" >/dev/null
	done
}

coredns_apply() {
	sed -e "s|@DNS_IP@|$(dns_ip "$1")|" -e "s|@COREDNS_IMAGE@|$COREDNS_IMAGE|" "$TESTBED_DIR/manifests/coredns.yaml" |
		kube "$1" apply --validate=false -f - >/dev/null
}

coredns_available() {
	[ "$(kube "$1" -n kube-system get deployment coredns -o jsonpath='{.status.availableReplicas}')" = 1 ]
}

cluster_nodes_ready() {
	local expected
	expected=$(nodes "$1" | wc -w)
	[ "$(kube "$1" get nodes -o json | jq '[.items[].status.conditions[] | select(.type == "Ready" and .status == "True")] | length')" -eq "$expected" ]
}

# cluster_healthy CLUSTER: booted by this very version, nothing has ended, and it answers. Says why not.
cluster_healthy() {
	local dead
	[ -d "$(cluster_folder "$1")" ] || { echo "not booted"; return 1; }
	[ "$(cat "$(cluster_folder "$1")/booted" 2>/dev/null)" = "$(cluster_key)" ] || { echo "half booted, or booted by another version"; return 1; }
	dead=$(components_dead "$1")
	[ -z "$dead" ] || { echo "not running: $(component_names "$dead")"; return 1; }
	wait_until 5 apiserver_ready "$1" || { echo "the API server is not ready"; return 1; }
	[ "$FLAVOUR" = full ] || return 0
	wait_until 15 cluster_nodes_ready "$1" || { echo "nodes are not Ready"; return 1; }
	wait_until 15 coredns_available "$1" || { echo "CoreDNS is not available"; return 1; }
}

# cluster_remove CLUSTER: whatever there is of it.
cluster_remove() {
	local node
	cgroup_kill "$SLOT/c$1"
	for node in 1 2; do network_remove_machine "$1" "$node"; done
	# A mount that is still there is a mistake of ours and no reason to delete what is behind it.
	rm -rf --one-file-system "$(cluster_folder "$1")"
}
