//! Manifests of the chart, as Helm renders them, and of kustomize.

use super::*;

/// Objects by API version, kind, namespace and name.
pub(super) type Objects = BTreeMap<[String; 4], Value>;

pub(super) fn chart() -> String {
    root().join("config/chart").display().to_string()
}

/// The program, unless its tests are left out.
pub(super) fn helm() -> Option<Command> {
    let program = std::env::var("HELM").expect(
        "HELM names helm, which `integration/testbed/testbed peer helm` compiles and prints; HELM=skip leaves the tests of the \
         chart out",
    );
    if program == "skip" {
        eprintln!("skipped: HELM=skip, the chart is not looked at");
        return None;
    }
    let mut command = Command::new(program);
    // Nothing of the user's: no cluster, no repositories, no plugins.
    let nowhere = std::env::temp_dir().join("cloudmap-mcs-no-helm");
    for variable in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &nowhere);
    }
    command.env("KUBECONFIG", "/dev/null");
    Some(command)
}

/// What a command prints, or what it says went wrong.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("failed to run {command:?}: {error}"));
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// A path that nothing else has.
pub(super) fn scratch(name: &str) -> PathBuf {
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("cloudmap-mcs-{name}-{}-{number}", std::process::id()))
}

/// Writes values into a file, which is removed with the handle.
pub(super) struct Values(pub(super) PathBuf);

impl Values {
    pub(super) fn new(values: &Value) -> Self {
        let file = scratch("values");
        std::fs::write(&file, values.to_string()).unwrap();
        Self(file)
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `helm template` of a chart with these values.
pub(super) fn render(chart: &str, values: &Value) -> Option<Result<String, String>> {
    let file = Values::new(values);
    let mut helm = helm()?;
    helm.args(["template", "my-release", chart, "--namespace", NAMESPACE, "--include-crds", "--values"]).arg(&file.0);
    Some(output(&mut helm))
}

pub(super) fn rendered(values: &Value) -> Option<Objects> {
    Some(parse(&render(&chart(), values)?.unwrap()))
}

pub(super) fn parse(manifests: &str) -> Objects {
    let mut objects = Objects::new();
    for document in serde_yaml_ng::Deserializer::from_str(manifests) {
        let object = Value::deserialize(document).unwrap();
        if object.is_null() {
            continue;
        }
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = [text("/apiVersion"), text("/kind"), text("/metadata/namespace"), text("/metadata/name")];
        assert!(objects.insert(key.clone(), object).is_none(), "{key:?} is there two times");
    }
    objects
}

/// What kustomize makes of a folder of the repository.
pub(super) fn kustomized(folder: &str) -> Objects {
    let mut objects = parse(&output(Command::new("kubectl").arg("kustomize").arg(root().join(folder))).unwrap());
    // Helm keeps its own records in the namespace, so that it cannot be part of the release: --create-namespace makes it.
    objects.retain(|[_, kind, ..], _| kind != "Namespace");
    objects
}

/// Without what Helm's conventions add.
pub(super) fn plain(mut objects: Objects) -> Objects {
    for object in objects.values_mut() {
        let metadata = object["metadata"].as_object_mut().unwrap();
        for (field, prefixes) in [
            (
                "labels",
                &[
                    "helm.sh/",
                    "app.kubernetes.io/managed-by",
                    "app.kubernetes.io/instance",
                    "app.kubernetes.io/version",
                ][..],
            ),
            ("annotations", &["helm.sh/"]),
        ] {
            let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) else { continue };
            map.retain(|key, _| !prefixes.iter().any(|prefix| key.starts_with(prefix)));
            if map.is_empty() {
                metadata.remove(field);
            }
        }
    }
    objects
}

pub(super) fn assert_same(ours: Objects, theirs: &Objects) {
    let ours = plain(ours);
    assert!(theirs.len() > 9, "{:?}", theirs.keys());
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "helm, then kustomize");
    for (key, object) in &ours {
        assert_eq!(object, &theirs[key], "{key:?}: helm on the left, kustomize on the right");
    }
}

pub(super) fn find<'a>(objects: &'a Objects, kind: &str, name: &str) -> Option<&'a Value> {
    objects.iter().find(|([_, found, _, named], _)| found == kind && named == name).map(|(_, object)| object)
}
