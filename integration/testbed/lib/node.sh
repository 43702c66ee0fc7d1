# containerd, kubelet and kube-proxy of one node. Paths below /run are the machine's own.

# containerd_start CLUSTER NODE
containerd_start() {
	local folder snapshotter=overlayfs ranges routes
	folder=$(node_folder "$1" "$2")
	# An overlay cannot be stacked on an overlay (where the cache is inside a container).
	[ "$(stat -f -c %T "$folder")" != overlayfs ] || snapshotter=native
	mkdir -p "$folder/cni"
	ranges=$(by_family "$1" "[{\"subnet\": \"$(pods "$1" "$2")\"}]" "[{\"subnet\": \"$(pods6 "$1" "$2")\"}]")
	routes=$(by_family "$1" '{"dst": "0.0.0.0/0"}' '{"dst": "::/0"}')
	cat >"$folder/cni/10-pods.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
  "type": "ptp", "ipMasq": false,
  "ipam": {
    "type": "host-local", "dataDir": "/run/node/ipam",
    "ranges": [$ranges],
    "routes": [$routes]
  }}]}
EOF
	cat >"$folder/containerd.toml" <<EOF
version = 2
root = "/run/node/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[ttrpc]
  address = "/run/containerd/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/node/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  # Nobody asks how much of the disk each container has written, for which all its files are looked at.
  stats_collect_period = 600
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(cni_bin)"
    conf_dir = "/run/node/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
EOF
	component_start "$1" "$2" containerd containerd --config /run/node/containerd.toml
}

# images_load CLUSTER NODE TAR...
images_load() {
	local cluster=$1 node=$2 snapshotter tar
	shift 2
	snapshotter=$(sed -n 's/.*snapshotter = "\(.*\)"/\1/p' "$(node_folder "$cluster" "$node")/containerd.toml")
	await "$cluster" 900 "containerd on node-$node" "$(node_folder "$cluster" "$node")/log/containerd.log" \
		in_machine "$cluster" "$node" ctr version
	for tar in "$@"; do
		in_machine "$cluster" "$node" ctr --namespace k8s.io images import --snapshotter "$snapshotter" "$tar" >/dev/null ||
			fail "cluster $cluster: failed to import $tar on node-$node"
	done
}

# kubelet_settings: what differs between versions, as lines of a KubeletConfiguration.
kubelet_settings() {
	# Before, it did not mind control groups of version 1.
	[ "$(minor)" -lt 31 ] || echo "failCgroupV1: false"
	# Resizing needs a cgroup per pod: without, kubelet 1.34 takes a pod that is deleted while it starts for one to resize, and
	# dies. Later ones always have it.
	[ "$(minor)" -gt 34 ] || echo "featureGates: {InPlacePodVerticalScaling: false}"
}

# proxy_settings: the same for a KubeProxyConfiguration.
proxy_settings() { [ "$(minor)" -gt 30 ] || echo "featureGates: {NFTablesProxyMode: true}"; }

# kubelet_start CLUSTER NODE
kubelet_start() {
	local folder pki components flags=()
	folder=$(node_folder "$1" "$2")
	pki=$(cluster_folder "$1")/pki
	components=$(kubernetes_folder)
	# CoreDNS' upstream: what the resolver of a VPC is to nodes, the Cloud Map emulator can be here (--resolver-listen).
	echo "nameserver $(primary "$1" "$HOST_IP" "$HOST_IP6")" >"$folder/resolv.conf"
	cat >"$folder/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $pki/ca.crt}
authorization: {mode: Webhook}
clusterDNS: ["$(dns_ip "$1")"]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: /run/node/resolv.conf
# No cgroup per pod or quality of service: what kubelet needs for them is not the same everywhere.
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
maxPods: 200
# There is no registry to fetch an image from again, and the disk is everybody's.
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "0%", imagefs.available: "0%", memory.available: "0%"}
# A changed ConfigMap (CoreDNS' Corefile) is in its volume after this at the latest.
syncFrequency: 3s
# Nobody asks how large volumes are.
volumeStatsAggPeriod: -1s
shutdownGracePeriod: 0s
# kubelet makes this folder, by default in /usr/libexec, which is the host's.
volumePluginDir: /run/node/volume-plugins
$(kubelet_settings)
EOF
	# Nobody asks what containers consume. (The flag is of a library of kubelet, and not known to be there in later versions.)
	[ "$(minor)" -gt 34 ] || flags+=(--housekeeping-interval 1m)
	component_start "$1" "$2" kubelet "$components/kubelet" ${flags[@]+"${flags[@]}"} --config /run/node/kubelet.yaml --kubeconfig "$pki/kubelet-$2.kubeconfig" \
		--hostname-override "node-$2" --node-ip "$(by_family "$1" "$(node_ip "$1" "$2")" "$(node_ip6 "$1" "$2")")" \
		--node-labels "topology.kubernetes.io/region=$(region),topology.kubernetes.io/zone=$(zone "$1" "$2")" \
		--root-dir /run/node/kubelet --cert-dir /run/node/kubelet/pki
}

# proxy_start CLUSTER NODE
proxy_start() {
	local folder components
	folder=$(node_folder "$1" "$2")
	components=$(kubernetes_folder)
	cat >"$folder/proxy.yaml" <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node-$2
clientConnection: {kubeconfig: $(cluster_folder "$1")/pki/proxy.kubeconfig}
clusterCIDR: "$(by_family "$1" "$(cluster_pods "$1")" "$(cluster_pods6 "$1")")"
# The connection table's limits are the kernel's, not this namespace's: left alone.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
$(proxy_settings)
EOF
	component_start "$1" "$2" kube-proxy "$components/kube-proxy" --config /run/node/proxy.yaml
}
