#!/usr/bin/env bash
# Builds the documents as a site with search (`make site`), with mdBook: docs/SUMMARY.md is its table of contents. Each
# version has a folder, and a page lists them. Fails if a link in it leads nowhere.
#
# Usage: integration/site.sh
#
#   SITE=folder   where it is put; other versions there stay [default: site in the cache]
set -euo pipefail
# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"
cd "$ROOT"
need cargo "a Rust toolchain (https://rustup.rs)" cc "a C compiler" git git
SITE=${SITE:-$CLOUDMAP_MCS_CACHE/site}
VERSION=$(version)
readonly SITE VERSION

mdbook=$(cargo_tool mdbook 0.5.4 --no-default-features --features search)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The same folders as here, so that links between documents hold; and what they link to.
mkdir "$work/src"
git ls-files -z '*.md' LICENSE docs samples coredns config | xargs -0 cp -RL --parents -t "$work/src" --
# mdBook makes an index of each README.
find "$work/src" -name '*.md' -exec sed -i.orig -E 's#(\]\([^):]*)README\.md#\1index.md#g' {} +
find "$work/src" -name '*.orig' -delete
sed -E 's#\]\(([a-z])#](docs/\1#; s#\]\(\.\./#](#' docs/SUMMARY.md >"$work/src/SUMMARY.md"
sed "s/^title = \"\(.*\)\"/title = \"\1 $VERSION\"/" docs/book.toml >"$work/book.toml"
rm -rf "${SITE:?}/$VERSION"
"$mdbook" build "$work" --dest-dir "$SITE/$VERSION" 2>&1 | tee "$work/log"
! grep -q ' WARN ' "$work/log" || fail "what mdBook warns of does not look on the page as it was meant"

broken=0
while IFS=: read -r page link; do
	[ -e "$(dirname "$page")/${link%%[#?]*}" ] || { echo "$page: $link leads nowhere" >&2; broken=1; }
done < <(cd "$SITE" && grep -roE --include='*.html' '(href|src)="[^":]+"' "$VERSION" | grep -vE '="(#|/|$)' |
	sed -E 's/:(href|src)="(.*)"$/:\2/' | sort -u | sed "s|^|$SITE/|")
[ "$broken" = 0 ] || fail "the site has broken links"

{
	printf '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>cloudmap-mcs</title>\n<h1>cloudmap-mcs</h1>\n<ul>\n'
	for index in "$SITE"/*/index.html; do basename "$(dirname "$index")"; done | sort -rV |
		sed 's#.*#<li><a href="&/index.html">&</a></li>#'
	printf '</ul>\n</html>\n'
} >"$SITE/index.html"
echo "site: $SITE/$VERSION/index.html"
