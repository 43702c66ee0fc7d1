//! What the documents apply from a URL.

use super::*;

/// A repository that has one folder of this one, so that no path leads out of it, with the tag of this version.
struct Repository(PathBuf);

impl Repository {
    fn of(folder: &str) -> Self {
        let path = scratch(folder);
        std::fs::create_dir(&path).unwrap();
        output(Command::new("cp").arg("-a").arg(root().join(folder)).arg(&path)).unwrap();
        let git = |arguments: &[&str]| {
            let who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"];
            output(Command::new("git").arg("-C").arg(&path).args(who).args(arguments)).unwrap();
        };
        git(&["init", "--quiet"]);
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "all"]);
        git(&["tag", concat!("v", env!("CARGO_PKG_VERSION"))]);
        Self(path)
    }

    fn url(&self, folder: &str) -> String {
        format!("file://{}//{folder}?ref=v{}", self.0.display(), env!("CARGO_PKG_VERSION"))
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_the_documents_apply_can_be_read_from_a_url() {
    for (repository, folders) in [
        ("config", &["config/default", "config/controller", "config/crd"][..]),
        ("coredns", &["coredns"]),
        ("samples", &["samples/export", "samples/client"]),
    ] {
        let repository = Repository::of(repository);
        for folder in folders {
            let from_url = output(Command::new("kubectl").arg("kustomize").arg(repository.url(folder))).unwrap();
            let local = output(Command::new("kubectl").arg("kustomize").arg(root().join(folder))).unwrap();
            assert_eq!(from_url, local, "{folder}");
        }
    }
}

#[test]
fn the_documented_overlay_needs_no_checkout() {
    let document = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
    let published = concat!("https://github.com/OWNER/cloudmap-mcs//config/default?ref=v", env!("CARGO_PKG_VERSION"));
    assert!(document.contains(published), "{published}");
    let mut overlays = document.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let overlay =
        overlays.find(|overlay| overlay.contains("- ../config/default\n")).expect("the overlay of a checkout");
    let repository = Repository::of("config");
    // Where a folder with the overlay is, nothing of ours is.
    let folder = repository.0.join("overlay");
    std::fs::create_dir(&folder).unwrap();
    let overlay = overlay.replace("../config/default", &repository.url("config/default"));
    let components = ["instance-labels", "readiness-gates", "cutovers"]
        .map(|name| format!("- {}\n", repository.url(&format!("config/components/{name}"))));
    let components = format!("components:\n{}", components.concat());
    std::fs::write(folder.join("kustomization.yaml"), overlay + &components).unwrap();
    let objects = parse(&output(Command::new("kubectl").arg("kustomize").arg(&folder)).unwrap());
    let image =
        &find(&objects, "Deployment", "cloudmap-mcs").unwrap()["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, concat!("registry.example/cloudmap-mcs:", env!("CARGO_PKG_VERSION")));
    for (kind, name) in [
        ("CustomResourceDefinition", "serviceexports.multicluster.x-k8s.io"),
        ("ClusterRole", "cloudmap-mcs-pods"),
        ("ClusterRole", "cloudmap-mcs-gates"),
        ("ClusterRole", "cloudmap-mcs-cutovers"),
    ] {
        assert!(find(&objects, kind, name).is_some(), "{kind} {name}");
    }
}
