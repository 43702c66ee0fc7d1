# etcd and the Kubernetes control plane of a cluster, on its first machine.

control_plane_start() {
	local cluster=$1 components
	components=$(kubernetes_folder)
	# The data lives as long as the process: there is nothing to sync to disk for.
	component_start "$cluster" 1 etcd "$components/etcd" --data-dir /run/node/etcd --unsafe-no-fsync --logger zap --log-level warn \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
		--name etcd --initial-cluster etcd=http://127.0.0.1:2380
	apiserver_start "$cluster"
}

apiserver_start() {
	local cluster=$1 components pki
	components=$(kubernetes_folder)
	pki=$(cluster_folder "$cluster")/pki
	component_start "$cluster" 1 kube-apiserver "$components/kube-apiserver" \
		--etcd-servers http://127.0.0.1:2379 --advertise-address "$(primary "$cluster" "$(node_ip "$cluster" 1)" "$(node_ip6 "$cluster" 1)")" --secure-port 6443 \
		--service-cluster-ip-range "$(by_family "$cluster" "$(services "$cluster")" "$(services6 "$cluster")")" \
		--tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --cert-dir /run/node/apiserver \
		--client-ca-file "$pki/ca.crt" --token-auth-file "$pki/tokens.csv" --authorization-mode Node,RBAC \
		--enable-admission-plugins NodeRestriction --allow-privileged --enable-priority-and-fairness=false \
		--service-account-issuer https://kubernetes.default.svc.cluster.local \
		--service-account-key-file "$pki/service-accounts.key" --service-account-signing-key-file "$pki/service-accounts.key" \
		--kubelet-client-certificate "$pki/apiserver-kubelet-client.crt" --kubelet-client-key "$pki/apiserver-kubelet-client.key" \
		--kubelet-preferred-address-types InternalIP
}

# apiserver_ready CLUSTER: /readyz is open to everybody.
apiserver_ready() {
	[ "$(curl -sS --noproxy '*' --max-time 3 --cacert "$(cluster_folder "$1")/pki/ca.crt" "$(server "$1")/readyz")" = ok ]
}

# apiserver_restart CLUSTER SECONDS: it is away for so long. etcd goes on meanwhile.
apiserver_restart() {
	local cluster=$1 folder pid
	folder=$(node_folder "$cluster" 1)
	pid=$(cat "$folder/pids/kube-apiserver")
	kill -KILL "$pid"
	wait_until 60 process_ended "$pid" || fail "the API server of cluster $cluster does not end"
	sleep "$2"
	apiserver_start "$cluster"
	await "$cluster" 600 "the API server" "$folder/log/kube-apiserver.log" apiserver_ready "$cluster"
}

# What no test uses: some of these look at everything ten times a second.
controllers() {
	local without
	printf '*'
	for without in node-ipam horizontal-pod-autoscaler ttl-after-finished ephemeral-volume persistentvolume-attach-detach \
		persistentvolume-binder persistentvolume-expander persistentvolume-protection persistentvolumeclaim-protection; do
		printf ',-%s-controller' "$without"
	done
}

controllers_start() {
	local cluster=$1 components pki
	components=$(kubernetes_folder)
	pki=$(cluster_folder "$cluster")/pki
	component_start "$cluster" 1 kube-controller-manager "$components/kube-controller-manager" \
		--kubeconfig "$pki/controller-manager.kubeconfig" --bind-address 127.0.0.1 --cert-dir /run/node/controller-manager \
		--leader-elect=false --use-service-account-credentials --root-ca-file "$pki/ca.crt" \
		--service-account-private-key-file "$pki/service-accounts.key" --kube-api-qps 100 --kube-api-burst 200 \
		--service-cluster-ip-range "$(by_family "$cluster" "$(services "$cluster")" "$(services6 "$cluster")")" --controllers "$(controllers)"
	component_start "$cluster" 1 kube-scheduler "$components/kube-scheduler" \
		--kubeconfig "$pki/scheduler.kubeconfig" --bind-address 127.0.0.1 --cert-dir /run/node/scheduler --leader-elect=false
}
