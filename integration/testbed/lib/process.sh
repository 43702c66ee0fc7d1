# Processes, and how they are found again: by control group.
#
# Everything that a testbed starts, containers included, lives in the cgroup cloudmap-mcs-testbed/<slot>. A cgroup
# survives whoever made it, its members cannot be confused with a reused process id, and nobody else's process is in it:
# so whatever an earlier run left, however it was killed, is found and ended without looking at names or command lines.

readonly CGROUP_TOP=cloudmap-mcs-testbed

# cgroup_hierarchies: where they are mounted: one on a cgroup v2 machine, one per controller on a v1 machine.
cgroup_hierarchies() { awk '($3 == "cgroup" || $3 == "cgroup2") && $2 ~ "^/sys/fs/cgroup" { print $2 }' /proc/self/mounts; }

# cgroup_members CGROUP: the processes of a cgroup and of those below it.
cgroup_members() {
	local hierarchy
	for hierarchy in $(cgroup_hierarchies); do
		find "$hierarchy/$CGROUP_TOP/$1" -name cgroup.procs -exec cat {} + 2>/dev/null || true
	done | sort -u
}

cgroup_empty() { [ -z "$(cgroup_members "$1")" ]; }

# cgroup_create CGROUP: in every hierarchy, with whatever a cgroup needs before it can have processes and children.
cgroup_create() {
	local hierarchy parent path part file
	for hierarchy in $(cgroup_hierarchies); do
		path=$hierarchy
		for part in $CGROUP_TOP ${1//\// }; do
			parent=$path
			path+=/$part
			# Twice, because the last of the other testbeds may just be removing the empty top.
			mkdir -p "$path" 2>/dev/null || mkdir -p "$path"
			if [ -e "$parent/cgroup.subtree_control" ]; then
				for file in $(cat "$parent/cgroup.controllers"); do
					echo "+$file" >"$parent/cgroup.subtree_control" || true
				done 2>/dev/null
			elif [ -e "$path/cpuset.cpus" ]; then
				for file in cpuset.cpus cpuset.mems; do
					[ -n "$(cat "$path/$file")" ] || cat "$parent/$file" >"$path/$file"
				done
			fi
		done
	done
}

# cgroup_join CGROUP PID
cgroup_join() {
	local hierarchy
	for hierarchy in $(cgroup_hierarchies); do echo "$2" >"$hierarchy/$CGROUP_TOP/$1/cgroup.procs"; done
}

# cgroup_kill CGROUP: ends every process of the cgroup and removes it, in every hierarchy.
cgroup_kill() {
	local members deadline=$((SECONDS + 120))
	while members=$(cgroup_members "$1") && [ -n "$members" ]; do
		# New members may be forked meanwhile: again until there are none.
		xargs -r kill -KILL <<<"$members" 2>/dev/null || true
		[ "$SECONDS" -lt "$deadline" ] || fail "processes do not die: ${members//$'\n'/ } (in uninterruptible sleep?)"
		sleep 0.05
	done
	while cgroup_remove "$1"; do
		[ "$SECONDS" -lt "$deadline" ] || fail "failed to remove the cgroup $CGROUP_TOP/$1: it is still in use"
		sleep 0.05
	done
}

# cgroup_remove CGROUP: tries to remove it everywhere; succeeds as long as something is left.
cgroup_remove() {
	local hierarchy left=1
	for hierarchy in $(cgroup_hierarchies); do
		[ -d "$hierarchy/$CGROUP_TOP/$1" ] || continue
		find "$hierarchy/$CGROUP_TOP/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
		[ ! -d "$hierarchy/$CGROUP_TOP/$1" ] || left=0
		rmdir "$hierarchy/$CGROUP_TOP" 2>/dev/null || true
	done
	return $left
}

# is_ours PID: whether the process lives and is one of this testbed's.
is_ours() { grep -qs "/$CGROUP_TOP/$SLOT/" "/proc/$1/cgroup"; }

# process_ended PID: also if nobody has collected what is left of it.
process_ended() { ! grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$1/status"; }

# spawn CGROUP LOG CMD...: starts a background process in a cgroup; prints its process id.
spawn() {
	local cgroup=$1 log=$2
	shift 2
	cgroup_create "$cgroup"
	(
		cgroup_join "$cgroup" "$BASHPID"
		# Neither locks nor pipes of the caller may live on in the process.
		for descriptor in /proc/"$BASHPID"/fd/*; do
			descriptor=${descriptor##*/}
			[ "$descriptor" -le 2 ] || eval "exec $descriptor>&-"
		done
		exec setsid "$@"
	) </dev/null >>"$log" 2>&1 &
	# Whoever looks at the process from here on finds it in its cgroup.
	while [ -d /proc/$! ] && ! is_ours $!; do sleep 0.01; done
	echo $!
}

# cgroup_delegate: inside a container on a cgroup v2 machine, what looks like the root is an ordinary cgroup, and it may not
# have both processes and controllers below it: the container's processes move into a leaf, as Docker-in-Docker has it.
cgroup_delegate() {
	[ -e /sys/fs/cgroup/cgroup.type ] && [ -s /sys/fs/cgroup/cgroup.procs ] || return 0
	mkdir -p /sys/fs/cgroup/init
	xargs -rn1 </sys/fs/cgroup/cgroup.procs >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
}
