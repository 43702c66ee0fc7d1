# How scripts look at clusters. A fact is ticked only if it was seen: an answer that failed is no answer, what is counted is
# what the fact names, and what is printed is what was checked. Sourced after stages.sh.
# shellcheck shell=bash

# show CMD...: prints a command, runs it, prints its output indented, and leaves the output in SHOWN.
show() {
	local status=0 errors
	errors=$(mktemp)
	printf '\n%s$ %s%s\n' "$DIM" "$(quoted "$@")" "$PLAIN"
	# kubectl warns on the standard error of what it does itself, and then there is an answer all the same.
	SHOWN=$("$@" 2>"$errors") || status=$?
	[ -z "$SHOWN" ] || awk '{ print "    " $0 }' <<<"$SHOWN"
	awk '{ print "    " $0 }' "$errors"
	rm -f "$errors"
	return "$status"
}

# quoted WORD...: prints the words as one would type them.
quoted() {
	local word line=
	for word in "$@"; do
		if [[ $word =~ ^[A-Za-z0-9_./:=@,+-]+$ ]]; then line+=" $word"; else line+=" '$word'"; fi
	done
	echo "${line# }"
}

# ok WHAT: prints a fact that was checked.
ok() { printf '  %s✓%s %s\n' "$BOLD" "$PLAIN" "$1"; }

# now: the time in milliseconds (rounded to seconds, if bash is older than version 5).
now() { if [ -n "${EPOCHREALTIME:-}" ]; then echo $((${EPOCHREALTIME//[.,]/} / 1000)); else echo "$(date +%s)000"; fi; }

# since MILLISECONDS: the seconds since then.
since() { awk "BEGIN { printf \"%.1f\", ($(now) - $1) / 1000 }"; }

# within WHAT CMD...: waits until a command succeeds, or fails and says what was expected and what the command said last. The
# end is only for what would never come: no machine is so slow.
within() {
	local deadline=$((SECONDS + ${PATIENCE:-240})) what=$1 said
	shift
	until said=$("$@" 2>&1); do
		[ "$SECONDS" -lt "$deadline" ] || fail "this did not happen in ${PATIENCE:-240} s: $what${said:+
$said}"
		sleep 0.1
	done
}

# nothing CMD...: whether a command succeeds and prints nothing. One that fails has not looked.
nothing() {
	local printed
	printed=$("$@") || return
	seen "$printed" test -z "$printed"
}

# seen ANSWER CMD...: whether a command succeeds that reads the answer. If not, the answer is printed, to say what there was.
seen() {
	local answer=$1
	shift
	if ! "$@" <<<"$answer" >/dev/null; then
		echo "$answer"
		return 1
	fi
}

# ready CONTEXT NAMESPACE SELECTOR: the ready endpoints of EndpointSlices, one a line: address, and pod if it has one. A pod
# of both families has two lines.
ready() {
	local slices
	slices=$(kubectl --context "$1" -n "$2" get endpointslices -l "$3" \
		-o 'jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.addresses[0]} {.targetRef.name}{"\n"}{end}') &&
		sed 's/ *$//; /^$/d' <<<"$slices" | sort -u
}

# own_endpoints CONTEXT NAMESPACE SERVICE: those of a Service's own pods.
own_endpoints() { ready "$1" "$2" "kubernetes.io/service-name=$3,endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"; }

# imported_addresses CONTEXT NAMESPACE SERVICE: those that an import has.
imported_addresses() {
	local found
	found=$(ready "$1" "$2" "multicluster.kubernetes.io/service-name=$3") && cut -d' ' -f1 <<<"$found" | sort -u
}

# serves CONTEXT NAMESPACE SERVICE N [POD]: whether exactly N pods are ready endpoints of the Service, each in as many families
# as any other, and POD is none of them. Says what there is if not.
serves() {
	local found pods
	found=$(own_endpoints "$1" "$2" "$3") || return
	pods=$(awk 'NF == 2 { print $2 }' <<<"$found" | sort | uniq -c)
	if [ "$(grep -c . <<<"$pods")" = "$4" ] && [ "$(awk '{ print $1 }' <<<"$pods" | sort -u | wc -l)" = 1 ] &&
		{ [ -z "${5:-}" ] || ! grep -qE " $5\$" <<<"$pods"; }; then
		return
	fi
	printf 'ready endpoints of %s in %s:\n%s\n' "$3" "$1" "${found:-none}"
	return 1
}

# imports_all CONTEXT FROM NAMESPACE SERVICE: whether the import in CONTEXT has exactly the addresses of the Service in FROM.
imports_all() {
	local own imported
	own=$(own_endpoints "$2" "$3" "$4") && imported=$(imported_addresses "$1" "$3" "$4") || return
	own=$(cut -d' ' -f1 <<<"$own" | sort -u)
	[ -n "$own" ] && [ "$own" = "$imported" ] && return
	printf '%s has:\n%s\n%s has:\n%s\n' "$2" "$own" "$1" "$imported"
	return 1
}

# objects_print CONTEXT NAMESPACE: what is there, to analyse a failure.
objects_print() {
	printf '\n--- %s: objects of %s\n' "$1" "$2"
	kubectl --context "$1" --request-timeout 10s -n "$2" get pods,services,endpointslices --show-labels -o wide || true
	kubectl --context "$1" --request-timeout 10s -n "$2" get serviceexports,serviceimports -o yaml || true
	kubectl --context "$1" --request-timeout 10s -n "$2" get events --sort-by .lastTimestamp 2>/dev/null | tail -n 20 || true
}
