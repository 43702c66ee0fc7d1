# Adds clusterset.local to a Corefile, unless it is there: the zone and the option `multicluster` to the kubernetes plugin, and
# the zone to those that the cache plugin skips, like cluster.local, so that changes of names and endpoints are seen at once.
/^[[:space:]]*kubernetes[[:space:]].*cluster\.local/{
/clusterset\.local/!{
s/^\([[:space:]]*\)\(kubernetes[[:space:]][[:space:]]*\)\([^{]*cluster\.local\)\(.*\){[[:space:]]*$/\1\2\3 clusterset.local\4{\
\1    multicluster clusterset.local/
}
}
/^[[:space:]]*disable[[:space:]][[:space:]]*\(success\|denial\)[[:space:]].*cluster\.local/{
/clusterset\.local/!s/[[:space:]]*$/ clusterset.local/
}
s/^\([[:space:]]*\)\(cache\|cache[[:space:]][^{]*[^{[:space:]]\)[[:space:]]*$/\1\2 {\
\1    disable success clusterset.local\
\1    disable denial clusterset.local\
\1}/
