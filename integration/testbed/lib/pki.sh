# Certificates, tokens and kubeconfigs of a cluster.

# Who talks to the API server, as "user,group" by file name; the names are those that Kubernetes' own RBAC rules know.
identities() {
	local node
	echo "admin admin system:masters"
	echo "controller-manager system:kube-controller-manager -"
	echo "scheduler system:kube-scheduler -"
	echo "proxy system:kube-proxy -"
	for node in $(nodes "$1"); do echo "kubelet-$node system:node:node-$node system:nodes"; done
}

# pki_create CLUSTER: in its folder's pki/.
pki_create() {
	local folder name user group token
	folder=$(cluster_folder "$1")/pki
	mkdir -p "$folder"
	cd "$folder"
	pki_key ca
	openssl req -x509 -new -key ca.key -subj "/CN=$(context "$1")" -days 3650 -out ca.crt 2>/dev/null
	openssl genrsa -out service-accounts.key 2048 2>/dev/null
	pki_certificate "$1" apiserver /CN=kube-apiserver serverAuth "subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$(node_ip "$1" 1),IP:$(node_ip6 "$1" 1),IP:$(kubernetes_ip "$1")"
	pki_certificate "$1" apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
	: >tokens.csv
	while read -r name user group; do
		token=$(openssl rand -hex 16)
		[ "$group" != - ] || group=
		echo "$token,$user,$name,\"$group\"" >>tokens.csv
		echo "$token" >"$name.token"
		kubeconfig "$1" "$name" >"$name.kubeconfig"
	done < <(identities "$1")
}

pki_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; }

# pki_certificate CLUSTER NAME SUBJECT USAGE [EXTENSION]
pki_certificate() {
	pki_key "$2"
	openssl req -new -key "$2.key" -subj "$3" -out "$2.csr" 2>/dev/null
	openssl x509 -req -in "$2.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$2.crt" \
		-extfile <(printf 'extendedKeyUsage=%s\n%s\n' "$4" "${5:-}") 2>/dev/null
}

context() { echo "mcs-$1"; }
server() { echo "https://$(primary "$1" "$(node_ip "$1" 1)" "[$(node_ip6 "$1" 1)]"):6443"; }

# kubeconfig CLUSTER IDENTITY
kubeconfig() {
	local pki
	pki=$(cluster_folder "$1")/pki
	cat <<EOF
apiVersion: v1
kind: Config
current-context: $(context "$1")
clusters:
- name: $(context "$1")
  cluster: {server: "$(server "$1")", certificate-authority-data: $(base64 -w0 "$pki/ca.crt")}
users:
- name: $(context "$1")
  user: {token: $(cat "$pki/$2.token")}
contexts:
- name: $(context "$1")
  context: {cluster: $(context "$1"), user: $(context "$1")}
EOF
}

# kubeconfig_merge: one file with a context for each cluster.
kubeconfig_merge() {
	local cluster files=()
	for cluster in $(clusters_present); do files+=("$(cluster_folder "$cluster")/pki/admin.kubeconfig"); done
	KUBECONFIG=$(IFS=:; echo "${files[*]}") kubectl config view --flatten --raw >"$STATE/.kubeconfig"
	mv "$STATE/.kubeconfig" "$STATE/kubeconfig"
}

# kube CLUSTER ARGUMENTS...: kubectl as the cluster's administrator.
kube() {
	local cluster=$1
	shift
	env -u HTTPS_PROXY -u https_proxy kubectl --kubeconfig "$(cluster_folder "$cluster")/pki/admin.kubeconfig" "$@"
}
