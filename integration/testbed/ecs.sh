#!/usr/bin/env bash
# Hosts outside the clusters, and tasks on them, as ECS has them: what its container agent does, for integration/src/ecs.
#
# A host is a network namespace on the testbed's switch with an IPv4 and an IPv6 address of its own. It reaches the pods and
# nodes of all clusters, and they reach it; nothing else. Its resolver is the one at port 53 of the testbed's host, which
# the Cloud Map emulator can be (--resolver-listen). Tasks are processes on a host, each in a control group: whatever
# becomes of those that started them, `reap`, `down` and `testbed down` find them, and touch nothing else.
set -euo pipefail

TESTBED_DIR=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
readonly TESTBED_DIR
for part in log versions prerequisites process image build slot network machine commands; do
	# shellcheck source=/dev/null
	source "$TESTBED_DIR/lib/$part.sh"
done

usage() {
	cat <<'EOF'
Usage: ecs.sh COMMAND [ARGUMENTS]

  run HOST TASK PORT [--owner PID] [--label TEXT] [-- CMD...]
                       starts a task on a host, which is made if it is not there; prints the host's addresses. Without CMD
                       it is an HTTP and UDP echo server on PORT, whose /hostname answers TASK
  host HOST            makes a host if it is not there; prints its addresses
  stop TASK [SECONDS]  SIGTERM, and after so many seconds (5) SIGKILL; a host without tasks goes
  kill TASK            SIGKILL, and the task stays in the list
  exec TASK -- CMD...  runs CMD on the task's host, with its resolver
  log TASK             what the task printed last
  list                 one line for each task: TASK, HOST, IPv4, IPv6, PORT, running|ended, owned|orphaned, LABEL, by tabs
  reap                 stops the tasks whose owners have ended
  down                 stops all tasks

Hosts have names of lower-case letters, digits and '-'. Tasks without owner run until they are stopped.
EOF
}

readonly FIRST=100 LAST=250

name_is_good() { [[ $1 =~ ^[a-z0-9][a-z0-9-]{0,62}$ ]] || fail "'$1' is no name of a host or a task: it takes lower-case letters, digits and '-'"; }

# shellcheck disable=SC2153 # STATE is set by slot_use
host_folder() { echo "$STATE/ecs/$1"; }
host_network() { echo "$PREFIX-ecs-$(cat "$(host_folder "$1")/number")"; }
host_addresses() { local n; n=$(cat "$(host_folder "$1")/number"); echo "$NET4.0.$n $NET6::ec:$n"; }

# task_folder TASK: fails if there is no such task.
task_folder() {
	local found=("$STATE"/ecs/*/tasks/"$1")
	[ -d "${found[0]}" ] || fail "there is no task '$1'"
	echo "${found[0]}"
}
task_host() {
	local folder
	folder=$(task_folder "$1")
	basename "${folder%/tasks/*}"
}

# started_at PID: sets STARTED_AT, which tells a process from a later one of the same id; fails if there is none.
started_at() {
	local line
	{ read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
	# What follows the program's name, which may have blanks.
	read -r -a line <<<"${line##*) }"
	STARTED_AT=${line[19]}
}

# in_turn: changes to hosts are made one at a time, until the command ends or out_of_turn.
in_turn() {
	mkdir -p "$STATE/ecs"
	exec 7>"$STATE/ecs/lock"
	flock 7
}
out_of_turn() { exec 7>&-; }

# host_make NAME: in turn. A host that was only half made is made again.
host_make() {
	local folder number network taken port
	folder=$(host_folder "$1")
	! [ -e "$folder/ready" ] || ! [ -e "/run/netns/$(host_network "$1")" ] || return 0
	host_remove "$1"
	mkdir -p "$folder/tasks"
	taken=" $({ cat "$STATE"/ecs/*/number 2>/dev/null || true; } | paste -sd' ') "
	for ((number = FIRST; number <= LAST; number++)); do [[ $taken == *" $number "* ]] || break; done
	[ "$number" -le "$LAST" ] || fail "all $((LAST - FIRST + 1)) addresses of hosts are taken: see 'ecs.sh list'"
	echo "$number" >"$folder/number"
	network=$(host_network "$1") port=ecs$number
	ip netns add "$network"
	in_network() { nsenter --net="/run/netns/$network" "$@"; }
	in_network sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv4.icmp_ratelimit=0
	in_switch ip link add "$port" type veth peer name eth0 address "$(mac 236 "$number")" netns "$network"
	in_switch ip link set "$port" master bridge up
	in_network ip link set lo up
	in_network ip address add "$NET4.0.$number/24" dev eth0
	in_network ip -6 address add "$NET6::ec:$number/64" dev eth0 nodad
	in_network ip link set eth0 up
	in_network ip route add blackhole default
	in_network ip -6 route add blackhole default
	# Pods are where the testbed's host has them.
	host_routes "$network"
	printf 'nameserver %s\noptions timeout:2 attempts:2\n' "${ECS_RESOLVER:-$HOST_IP}" >"$folder/resolv.conf"
	echo 'hosts: files dns' >"$folder/nsswitch.conf"
	# What listens on the testbed's host as AWS has it: the SDKs put `data-` before the name for discovery.
	printf '127.0.0.1 localhost\n%s servicediscovery.testbed data-servicediscovery.testbed\n' "$HOST_IP" >"$folder/hosts"
	touch "$folder/ready"
}

host_routes() {
	local family route
	for family in -4 -6; do
		while read -r -a route; do
			nsenter --net="/run/netns/$1" ip "$family" route add "${route[0]}" via "${route[2]}"
		done < <(ip "$family" route show dev "$PREFIX" | grep ' via ')
	done
}

# host_remove NAME: in turn.
host_remove() {
	local folder
	folder=$(host_folder "$1")
	[ -d "$folder" ] || return 0
	if [ -e "$folder/number" ]; then
		in_switch ip link delete "ecs$(cat "$folder/number")" 2>/dev/null || true
		ip netns delete "$(host_network "$1")" 2>/dev/null || true
	fi
	rm -rf "$folder"
}

# on_host HOST NAME: the words before a command that make it run on a host: its network, its resolver, a host name.
on_host() {
	local folder
	folder=$(host_folder "$1")
	# shellcheck disable=SC2016 # the inner shell's variables
	ON_HOST=(nsenter --net="/run/netns/$(host_network "$1")" unshare --mount --uts --propagation slave
		sh -c 'hostname "$1"; mount --no-mtab --bind "$2/resolv.conf" /etc/resolv.conf
			mount --no-mtab --bind "$2/hosts" /etc/hosts
			[ ! -e /etc/nsswitch.conf ] || mount --no-mtab --bind "$2/nsswitch.conf" /etc/nsswitch.conf
			shift 2; exec "$@"' sh "$2" "$folder")
}

clean_environment() { echo env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root; }

ecs_host() {
	[ $# -eq 1 ] || fail "host takes the name of a host"
	name_is_good "$1"
	in_turn
	host_make "$1"
	host_addresses "$1"
}

ecs_run() {
	local host=${1:-} task=${2:-} port=${3:-} owner='' label='' folder pid
	name_is_good "$host"
	name_is_good "$task"
	[[ $port =~ ^[0-9]{1,5}$ ]] || fail "run takes HOST TASK PORT, the port as a number"
	shift 3
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		case $1 in
		--owner) started_at "${2:-}" && owner="$2 $STARTED_AT" || fail "--owner takes the id of a process that runs" ;;
		--label) label=${2:-} ;;
		*) fail "run does not take '$1'" ;;
		esac
		shift 2
	done
	[ $# -eq 0 ] || shift
	[ $# -gt 0 ] || set -- "$(components_folder)/agnhost" netexec --http-port "$port" --udp-port "$port"
	in_turn
	! compgen -G "$STATE/ecs/*/tasks/$task" >/dev/null || fail "there is a task '$task' already"
	host_make "$host"
	folder=$(host_folder "$host")/tasks/$task
	mkdir -p "$folder"
	echo "$port" >"$folder/port"
	echo "$owner" >"$folder/owner"
	printf '%s\n' "${label//[$'\t\n']/ }" >"$folder/label"
	out_of_turn
	on_host "$host" "$task"
	# shellcheck disable=SC2046 # several words
	pid=$(spawn "$SLOT/ecs/$task" "$folder/log" "${ON_HOST[@]}" $(clean_environment) "$@")
	echo "$pid" >"$folder/pid"
	host_addresses "$host"
}

# task_remove TASK: its processes are gone already.
task_remove() {
	local host
	host=$(task_host "$1")
	in_turn
	rm -rf "$(task_folder "$1")"
	[ -n "$(ls -A "$(host_folder "$host")/tasks")" ] || host_remove "$host"
	out_of_turn
}

ecs_stop() {
	[ $# -ge 1 ] || fail "stop takes a task"
	task_folder "$1" >/dev/null
	local cgroup=$SLOT/ecs/$1
	if ! cgroup_empty "$cgroup"; then
		cgroup_members "$cgroup" | xargs -r kill -TERM 2>/dev/null || true
		wait_until "${2:-5}" cgroup_empty "$cgroup" || true
	fi
	cgroup_kill "$cgroup"
	task_remove "$1"
}

ecs_kill() {
	[ $# -eq 1 ] || fail "kill takes a task"
	task_folder "$1" >/dev/null
	cgroup_kill "$SLOT/ecs/$1"
}

ecs_exec() {
	local task=${1:-}
	[ $# -ge 3 ] && [ "$2" = -- ] || fail "exec takes TASK -- CMD..."
	shift 2
	on_host "$(task_host "$task")" "$task"
	cgroup_create "$SLOT/ecs/$task"
	cgroup_join "$SLOT/ecs/$task" "$BASHPID"
	# shellcheck disable=SC2046 # several words
	exec "${ON_HOST[@]}" $(clean_environment) "$@"
}

ecs_log() {
	[ $# -eq 1 ] || fail "log takes a task"
	tail -n 40 "$(task_folder "$1")/log"
}

# tasks: all of them.
tasks() { find "$STATE/ecs" -mindepth 3 -maxdepth 3 -path '*/tasks/*' -type d -printf '%f\n' 2>/dev/null | sort; }

# is_orphaned FOLDER: whether the task has an owner and that has ended.
is_orphaned() {
	local pid started
	read -r pid started <"$1/owner" || true
	[ -n "${pid:-}" ] && { ! started_at "$pid" || [ "$STARTED_AT" != "$started" ]; }
}

# Callers ask often, and about many tasks: no process is started here but one.
ecs_list() {
	local hierarchy folder host number port label state owned
	read -r hierarchy < <(cgroup_hierarchies)
	for folder in "$STATE"/ecs/*/tasks/*; do
		# One that is being made, or removed meanwhile by somebody else, is no task.
		{ [ -e "$folder/pid" ] && host=${folder%/tasks/*} && read -r number <"$host/number" && read -r port <"$folder/port" &&
			IFS= read -r label <"$folder/label"; } 2>/dev/null || continue
		state=ended owned=owned
		! { read -r _ <"$hierarchy/$CGROUP_TOP/$SLOT/ecs/${folder##*/}/cgroup.procs"; } 2>/dev/null || state=running
		! is_orphaned "$folder" 2>/dev/null || owned=orphaned
		printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "${folder##*/}" "${host##*/}" "$NET4.0.$number" "$NET6::ec:$number" \
			"$port" "$state" "$owned" "$label"
	done
}

ecs_reap() {
	local task folder
	for task in $(tasks); do
		folder=$(task_folder "$task" 2>/dev/null) || continue
		! is_orphaned "$folder" || ecs_stop "$task" 0
	done
}

ecs_down() {
	local task host
	for task in $(tasks); do ecs_stop "$task" 0; done
	cgroup_kill "$SLOT/ecs"
	in_turn
	for host in "$STATE"/ecs/*/; do [ ! -d "$host" ] || host_remove "$(basename "$host")"; done
}

command=${1:-help}
[ $# -eq 0 ] || shift
[[ ${1:-} != -h && ${1:-} != --help ]] || command=help
case $command in
host | run | stop | kill | exec | log | list | reap | down)
	[ "$(id -u)" -eq 0 ] || fail "hosts outside the clusters need root"
	if [ -n "${TESTBED_SLOT:-}" ] && [ -f "$REGISTRY/slot-$TESTBED_SLOT" ]; then
		slot_use "$TESTBED_SLOT"
	else
		FLAVOUR=full
		slot_held
	fi
	[ -n "$SLOT" ] && [ -e "$STATE/network" ] || fail "no testbed is up: run 'testbed up' first"
	"ecs_$command" "$@"
	;;
help | -h | --help) usage ;;
*) misused "there is no command '$command'" ;;
esac
