# Processes, and how they are found again: by control group.
#
# Everything that a testbed starts, containers included, lives in the cgroup cloudmap-mcs-testbed/<slot>. A cgroup
# survives whoever made it, its members cannot be confused with a reused process id, and nobody else's process is in it:
# so whatever an earlier run left, however it was killed, is found and ended without looking at names or command lines.

readonly CGROUP_TOP=cloudmap-mcs-testbed

# cgroup_hierarchies: the mounted hierarchies: one on a cgroup v2 machine, one per controller on a v1 machine.
cgroup_hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts; }

# cgroup_v2: whether containers are put in the unified hierarchy.
cgroup_v2() { [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; }

# cgroup_hierarchy: the hierarchy by which processes are found: runc puts containers there too.
cgroup_hierarchy() {
	if cgroup_v2; then echo /sys/fs/cgroup; else echo /sys/fs/cgroup/pids; fi
}

# cgroup_members CGROUP: the processes of a cgroup and of those below it.
cgroup_members() {
	find "$(cgroup_hierarchy)/$CGROUP_TOP/$1" -name cgroup.procs -exec cat {} + 2>/dev/null || true
}

# cgroup_create CGROUP. Twice, because the last of the others may just be removing the empty top.
cgroup_create() { mkdir -p "$(cgroup_hierarchy)/$CGROUP_TOP/$1" 2>/dev/null || mkdir -p "$(cgroup_hierarchy)/$CGROUP_TOP/$1"; }

# cgroup_kill CGROUP: ends every process of the cgroup and removes it, in every hierarchy.
cgroup_kill() {
	local hierarchy members deadline=$((SECONDS + 20))
	hierarchy=$(cgroup_hierarchy)/$CGROUP_TOP/$1
	if [ -d "$hierarchy" ]; then
		while members=$(cgroup_members "$1") && [ -n "$members" ]; do
			# New members may be forked meanwhile: again until there are none.
			xargs -r kill -KILL <<<"$members" 2>/dev/null || true
			[ "$SECONDS" -lt "$deadline" ] || fail "processes do not die: ${members//$'\n'/ } (in uninterruptible sleep?)"
			sleep 0.05
		done
	fi
	while cgroup_remove "$1"; do
		[ "$SECONDS" -lt "$deadline" ] || fail "failed to remove the cgroup $CGROUP_TOP/$1: it is still in use"
		sleep 0.05
	done
}

# cgroup_remove CGROUP: tries to remove it everywhere; succeeds as long as something is left.
cgroup_remove() {
	local hierarchy left=1
	while read -r hierarchy; do
		[ -d "$hierarchy/$CGROUP_TOP/$1" ] || continue
		find "$hierarchy/$CGROUP_TOP/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
		[ ! -d "$hierarchy/$CGROUP_TOP/$1" ] || left=0
		rmdir "$hierarchy/$CGROUP_TOP" 2>/dev/null || true
	done < <(cgroup_hierarchies)
	return $left
}

# is_ours PID: whether the process lives and is one of this testbed's.
is_ours() { grep -qs "/$CGROUP_TOP/$SLOT/" "/proc/$1/cgroup"; }

# spawn CGROUP LOG CMD...: starts a background process in a cgroup; prints its process id.
spawn() {
	local cgroup=$1 log=$2
	shift 2
	cgroup_create "$cgroup"
	(
		echo "$BASHPID" >"$(cgroup_hierarchy)/$CGROUP_TOP/$cgroup/cgroup.procs"
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

cgroup_empty() { [ -z "$(cgroup_members "$1")" ]; }

# cgroup_delegate: inside a container on a cgroup v2 machine, what looks like the root is an ordinary cgroup, and it may not
# have both processes and controllers below it: the container's processes move into a leaf, as Docker-in-Docker has it.
cgroup_delegate() {
	cgroup_v2 && [ -e /sys/fs/cgroup/cgroup.type ] && [ -s /sys/fs/cgroup/cgroup.procs ] || return 0
	mkdir -p /sys/fs/cgroup/init
	xargs -rn1 </sys/fs/cgroup/cgroup.procs >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
}
