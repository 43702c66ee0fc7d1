# What is built and where it is kept.

# The Go versions of Kubernetes, etcd and CoreDNS are in go/*/go.mod; these must name the same. Those of peers (peers.sh) are
# there alone.
readonly KUBERNETES_VERSION=v1.34.4
readonly COREDNS_VERSION=v1.14.7

# The public names of the images, so that manifests written for any cluster run here unchanged.
readonly PAUSE_IMAGE=registry.k8s.io/pause:3.10.1
readonly COREDNS_IMAGE=registry.k8s.io/coredns/coredns:$COREDNS_VERSION
# agnhost 2.56 is the version in the tree of Kubernetes v1.34.
readonly AGNHOST_IMAGE=registry.k8s.io/e2e-test-images/agnhost:2.56

CACHE=${CLOUDMAP_MCS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cloudmap-mcs}
case $CACHE in
*[[:space:]]*) fail "the cache is '$CACHE': no spaces, please (set CLOUDMAP_MCS_CACHE)" ;;
/run/* | /var/run/*) fail "the cache is '$CACHE': it must be on a disk, not in /run (set CLOUDMAP_MCS_CACHE)" ;;
/*) ;;
*) fail "the cache is '$CACHE': it must be an absolute path (set CLOUDMAP_MCS_CACHE)" ;;
esac
readonly CACHE

# digest FILE...: a short hash of the files' contents.
digest() { cat "$@" | sha256sum | cut -c1-16; }

# The folders of compiled components and of images, keyed by everything that goes into them.
components_folder() {
	echo "$CACHE/components/$(uname -m)-$(digest "$TESTBED_DIR"/go/{kubernetes,coredns}/{go.mod,go.sum,main.go} "$TESTBED_DIR"/lib/{versions,build}.sh)"
}
images_folder() {
	echo "$CACHE/images/$(uname -m)-$(digest "$TESTBED_DIR"/go/{kubernetes,coredns}/{go.mod,go.sum,main.go} "$TESTBED_DIR"/lib/{versions,build,image}.sh)"
}
