# Network namespaces and routes.
#
# The machines of a testbed are network namespaces on one bridge, and every machine routes every other machine's pods:
# the flat network that a VPC is. The bridge is in a namespace of its own, because packets between ports of a bridge in
# the host's would pass the host's firewall rules. The host has an address on the bridge too. Nothing leaves: what no
# route here covers ends in a blackhole.

# network_up: the switch, the host's side, and the host's routes to all nodes and pods. Cheap; done anew by every `up`.
network_up() {
	! [ -e "$STATE/network" ] || ! [ -e "/run/netns/$SWITCH" ] || ! [ -e "/sys/class/net/$PREFIX" ] || return 0
	rm -f "$STATE/network"
	network_down
	ip netns add "$SWITCH"
	in_switch sysctl -qw net.ipv6.conf.all.disable_ipv6=1
	in_switch ip link add bridge type bridge forward_delay 0 mcast_snooping 0
	in_switch ip link set bridge up
	ip link add "$PREFIX" address "$(mac 0 1)" type veth peer name host netns "$SWITCH"
	in_switch ip link set host master bridge up
	# Machines on which IPv6 is off set this for every new interface. This one is ours, and has IPv6 all the same.
	sysctl -qw "net.ipv6.conf.$PREFIX.disable_ipv6=0"
	ip address add "$HOST_IP/24" dev "$PREFIX"
	ip -6 address add "$HOST_IP6/64" dev "$PREFIX" nodad
	ip link set "$PREFIX" up
	ip route add blackhole "$NET4.0.0/16"
	ip -6 route add blackhole "$NET6::/48"
	routes "ipv4 ipv6"
	touch "$STATE/network"
}

# routes FAMILIES [CLUSTER/NODE] [CMD...]: routes by these families, with CMD before each `ip`, to the pods of all machines
# but that one.
routes() {
	local families=$1 own=${2:-} cluster node
	shift $(($# > 1 ? 2 : 1))
	for ((cluster = 1; cluster <= MAX_CLUSTERS; cluster++)); do
		for node in $(nodes "$cluster"); do
			[ "$cluster/$node" != "$own" ] || continue
			[[ $families != *ipv4* ]] || ! has "$cluster" ipv4 || "$@" ip route add "$(pods "$cluster" "$node")" via "$(node_ip "$cluster" "$node")"
			[[ $families != *ipv6* ]] || ! has "$cluster" ipv6 || "$@" ip -6 route add "$(pods6 "$cluster" "$node")" via "$(node_ip6 "$cluster" "$node")"
		done
	done
}

# network_down: whatever there is of it, and what benchmarks that were killed left: the addresses of cutover-bench.sh, and the
# cut of bench-host.sh. Routes go with the link, except the blackholes.
network_down() {
	local namespace
	ip route delete local "$NET4.128.0/17" dev lo 2>/dev/null || true
	nft delete table ip "cloudmap_mcs_bench_$SLOT" 2>/dev/null || true
	ip link delete "$PREFIX" 2>/dev/null || true
	ip route delete blackhole "$NET4.0.0/16" 2>/dev/null || true
	ip -6 route delete blackhole "$NET6::/48" 2>/dev/null || true
	while read -r namespace _; do
		[[ $namespace != "$PREFIX"-* ]] || ip netns delete "$namespace"
	done < <(ip netns list 2>/dev/null)
}

in_switch() { nsenter --net="/run/netns/$SWITCH" "$@"; }

# network_add_machine CLUSTER NODE: its namespace, plugged into the switch.
network_add_machine() {
	local name
	name=$(machine_name "$1" "$2")
	ip netns add "$name"
	in_machine_network() { nsenter --net="/run/netns/$name" "$@"; }
	in_machine_network sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 \
		net.ipv4.conf.default.rp_filter=0 net.ipv6.conf.default.accept_dad=0 \
		net.ipv4.icmp_ratelimit=0
	in_switch ip link add "c$1n$2" type veth peer name eth0 address "$(mac "$1" "$2")" netns "$name"
	in_switch ip link set "c$1n$2" master bridge up
	in_machine_network ip link set lo up
	! has "$1" ipv4 || in_machine_network ip address add "$(node_ip "$1" "$2")/24" dev eth0
	! has "$1" ipv6 || in_machine_network ip -6 address add "$(node_ip6 "$1" "$2")/64" dev eth0 nodad
	in_machine_network ip link set eth0 up
	in_machine_network ip route add blackhole default
	in_machine_network ip -6 route add blackhole default
	routes "$(families "$1")" "$1/$2" in_machine_network
}

# network_remove_machine CLUSTER NODE: its namespace, and with it the links. Its processes must be gone.
network_remove_machine() {
	in_switch ip link delete "c$1n$2" 2>/dev/null || true
	ip netns delete "$(machine_name "$1" "$2")" 2>/dev/null || true
}
