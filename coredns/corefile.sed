# Adds clusterset.local to the kubernetes plugin of a Corefile, once: the zone, and the option that serves it.
/^[[:space:]]*kubernetes[[:space:]].*cluster\.local/{
/clusterset\.local/!{
s/^\([[:space:]]*\)\(kubernetes[[:space:]][[:space:]]*\)\([^{]*cluster\.local\)\(.*\){[[:space:]]*$/\1\2\3 clusterset.local\4{\
\1    multicluster clusterset.local/
}
}
