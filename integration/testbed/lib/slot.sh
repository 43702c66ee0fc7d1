# Slots: what keeps the testbeds of several checkouts apart.
#
# A testbed (a checkout, a flavour and a name) holds a numbered slot in a registry of this machine for as long as it is up.
# Every name and address follows from the slot, the cluster's number (1 to 6) and the node's number (1 or 2):
#
#   10.S.0.0/16, S = 200 + slot                       fd6d:6373:<slot>::/48
#     10.S.0.0/24           the nodes, host is .1       :0::/64      the nodes, host is ::1
#     10.S.(8 c)+n.0/24     pods of node n, cluster c   :<c>0<n>::/64
#     10.S.(64+16 c).0/20   Services of cluster c       :f<c>::/108

readonly REGISTRY=/run/cloudmap-mcs-testbed
readonly SLOTS=40
readonly MAX_CLUSTERS=6

checkout_key() { printf '%s %s %s' "$TESTBED_DIR" "$FLAVOUR" "${TESTBED_NAME:-}" | sha256sum | cut -c1-12; }

# checkout_slots: the slots that testbeds of this checkout hold, whatever their flavours and names.
checkout_slots() {
	local file folder
	for file in "$REGISTRY"/slot-*; do
		[ -f "$file" ] || continue
		read -r _ _ _ folder <"$file"
		[ "$folder" != "$TESTBED_DIR" ] || echo "${file##*/slot-}"
	done
}

# slot_held: sets STATE, the folder of this checkout's testbed, and SLOT, the slot that it holds, or nothing.
slot_held() {
	local file
	SLOT=
	STATE=$CACHE/run/$(checkout_key)
	for file in "$REGISTRY"/slot-*; do
		[ -f "$file" ] || continue
		[ "$(cut -d' ' -f1 "$file")" != "$(checkout_key)" ] || slot_use "${file##*/slot-}"
	done
}

# slot_claim: sets SLOT, claiming the first free one if this checkout holds none.
slot_claim() {
	local candidate
	mkdir -p "$REGISTRY"
	exec 8>"$REGISTRY/lock"
	flock 8
	slot_held
	if [ -z "$SLOT" ]; then
		for ((candidate = 0; candidate < SLOTS; candidate++)); do
			slot_is_free "$candidate" || continue
			SLOT=$candidate
			# Renamed into place, so that no reader ever sees half of it.
			echo "$(checkout_key) $FLAVOUR $CACHE/run/$(checkout_key) $TESTBED_DIR" >"$REGISTRY/.slot-$SLOT"
			mv "$REGISTRY/.slot-$SLOT" "$REGISTRY/slot-$SLOT"
			slot_use "$SLOT"
			break
		done
	fi
	exec 8>&-
	[ -n "$SLOT" ] || fail "all $SLOTS slots are taken: see $REGISTRY/slot-* and 'testbed down --slot N'"
}

# slot_is_free N: unclaimed, and its addresses are not routed anywhere on this machine.
slot_is_free() {
	[ ! -e "$REGISTRY/slot-$1" ] || return 1
	[ -z "$(ip -4 route show root "10.$((200 + $1)).0.0/16" 2>/dev/null)" ]
}

slot_release() { rm -f "$REGISTRY/slot-$SLOT"; }

# slot_use N: sets everything that follows from a slot. The registry's line is: key, flavour, state folder, checkout.
slot_use() {
	SLOT=$1
	read -r _ FLAVOUR STATE _ <"$REGISTRY/slot-$SLOT"
	PREFIX=mcs$SLOT
	NET4=10.$((200 + SLOT))
	printf -v NET6 'fd6d:6373:%x' "$SLOT"
	HOST_IP=$NET4.0.1
	HOST_IP6=$NET6::1
	SWITCH=$PREFIX-switch
}

# The rest takes a cluster's number, or a cluster's and a node's.
machine_name() { echo "$PREFIX-c$1n$2"; }
# A rebooted machine keeps its address, as its neighbours remember it. Cluster 0 is the host.
mac() { printf '02:6d:63:%02x:%02x:%02x' "$SLOT" "$1" "$2"; }
node_ip() { echo "$NET4.0.$(($1 * 10 + $2))"; }
node_ip6() { echo "$NET6::$1:$2"; }
pods() { echo "$NET4.$(($1 * 8 + $2)).0/24"; }
pods6() { echo "$NET6:${1}0${2}::/64"; }
cluster_pods() { echo "$NET4.$(($1 * 8)).0/21"; }
cluster_pods6() { echo "$NET6:${1}00::/56"; }
services() {
	case $FLAVOUR in
	# For benchmarks: nothing routes it. Ten thousand Services and as many derived ones do not fit into a /18.
	apiservers) echo "172.$((19 + $1)).0.0/16" ;;
	*) echo "$NET4.$((64 + $1 * 16)).0/20" ;;
	esac
}
services6() { echo "$NET6:f$1::/108"; }
# families CLUSTER: the third has IPv4 only and the fourth IPv6 only, so that the tests see what crosses between the kinds.
families() {
	case $FLAVOUR/$1 in
	full/3) echo ipv4 ;;
	*/4) echo ipv6 ;;
	*) echo ipv4 ipv6 ;;
	esac
}
has() { [[ $(families "$1") == *$2* ]]; }
# by_family CLUSTER IPV4 IPV6: the cluster's part of a list.
by_family() { case $(families "$1") in ipv4) echo "$2" ;; ipv6) echo "$3" ;; *) echo "$2,$3" ;; esac; }
# primary CLUSTER IPV4 IPV6: the one of the cluster's first family.
primary() { if has "$1" ipv4; then echo "$2"; else echo "$3"; fi; }
kubernetes_ip() { primary "$1" "$NET4.$((64 + $1 * 16)).1" "$NET6:f$1::1"; }
dns_ip() { primary "$1" "$NET4.$((64 + $1 * 16)).10" "$NET6:f$1::a"; }
cluster_folder() { echo "$STATE/cluster-$1"; }
node_folder() { echo "$STATE/cluster-$1/node-$2"; }

# nodes CLUSTER: the numbers of its nodes. Node names repeat from cluster to cluster (node-1), as they do between VPCs.
nodes() { if [ "$1" -eq 1 ] && [ "$FLAVOUR" = full ]; then echo 1 2; else echo 1; fi; }
region() { echo eu-central-1; }
# zone CLUSTER NODE: cluster 1 spans two zones; cluster 3 shares the second with it, all others the first.
zone() { case $1/$2 in 1/2 | 3/*) echo "$(region)b" ;; *) echo "$(region)a" ;; esac; }
