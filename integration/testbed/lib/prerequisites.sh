# What must be on the machine before anything is built.

# What people install themselves; everything else is a Debian package that `build` installs.
readonly PREREQUISITES=(
	"cargo:a Rust toolchain (https://rustup.rs)"
	"go:Go 1.24 or later (https://go.dev/dl)"
	"make:GNU make"
	"cc:a C compiler with static libc (gcc and libc6-dev)"
	"kubectl:kubectl 1.32 or later (https://kubernetes.io/docs/tasks/tools)"
)

# command:package, for whatever is missing. iptables is for containerd and CNI, conntrack for kube-proxy.
readonly PACKAGES=(
	containerd:containerd ctr:containerd runc:runc nft:nftables iptables:iptables conntrack:conntrack ip:iproute2
	jq:jq openssl:openssl dig:bind9-dnsutils nslookup:bind9-dnsutils curl:curl wget:wget
	nsenter:util-linux flock:util-linux findmnt:util-linux sysctl:procps modprobe:kmod xz:xz-utils
)

# A plain `su` leaves these folders out of root's PATH, and nft and sysctl are there.
export PATH=$PATH:/usr/sbin:/sbin

# The folder of the CNI plugins: Debian's, or the one that upstream releases use.
cni_bin() {
	local folder
	for folder in /usr/lib/cni /opt/cni/bin; do
		[ ! -x "$folder/ptp" ] || { echo "$folder"; return; }
	done
	return 1
}

# go_fetches_go: since 1.21 it fetches the version that a go.mod names. Before, it does not even read that.
go_fetches_go() { [[ $(go version 2>/dev/null) =~ go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 21 ]; }

# missing_prerequisites: one line for each thing that this machine lacks.
missing_prerequisites() {
	local entry
	[ "$(uname -s)" = Linux ] || echo "Linux: this is $(uname -s)"
	[ "$(id -u)" -eq 0 ] || echo "root: network namespaces and containers need it (sudo env \"PATH=\$PATH\" make demo)"
	for entry in "${PREREQUISITES[@]}"; do
		command -v "${entry%%:*}" >/dev/null || echo "${entry%%:*}: ${entry#*:}"
	done
	! command -v go >/dev/null || go_fetches_go || echo "go: this is $(go version | cut -d' ' -f3); Go 1.24 or later (https://go.dev/dl)"
	[ ! -d /proc/sys/net ] || [ -d /proc/sys/net/ipv6 ] || echo "IPv6: the kernel has it disabled (ipv6.disable=1?)"
	[ ! -r /proc/self/mounts ] || grep -qE ' /sys/fs/cgroup\S* cgroup2? ' /proc/self/mounts ||
		echo "control groups: none are mounted below /sys/fs/cgroup"
}

# missing_packages: the Debian packages of the commands that are not there.
missing_packages() {
	local entry
	{
		for entry in "${PACKAGES[@]}"; do
			command -v "${entry%%:*}" >/dev/null || echo "${entry#*:}"
		done
		cni_bin >/dev/null || echo containernetworking-plugins
		[ -s /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
	} | sort -u
}

require_prerequisites() {
	local missing
	missing=$(missing_prerequisites)
	[ -n "$missing" ] || return 0
	{
		echo "[testbed] this machine cannot run the testbed. Missing:"
		sed 's/^/  - /' <<<"$missing"
		echo "Instead, name two contexts of your kubeconfig whose clusters' pods reach each other (kind, EKS):"
		echo "  CONTEXTS=a,b make demo"
	} >&2
	exit 1
}

install_packages() {
	local packages
	mapfile -t packages < <(missing_packages)
	[ ${#packages[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null ||
		fail "missing, by the names of their Debian packages: ${packages[*]}; install them with this system's package manager"
	say "installing ${packages[*]}"
	# Others of the machine may use it at the same time, and mirrors fail now and then.
	local log=$CACHE/apt.log apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)
	export DEBIAN_FRONTEND=noninteractive
	"${apt[@]}" update >"$log" 2>&1 || say "apt-get update failed (see $log); trying with the lists that are there"
	quietly "$log" "${apt[@]}" install -y --no-install-recommends "${packages[@]}"
	mapfile -t packages < <(missing_packages)
	[ ${#packages[@]} -eq 0 ] || fail "still missing after apt-get install: ${packages[*]}"
}
