use super::*;

const NAMES: [&str; 4] = ["selectors", "fallback", "min-ready", "weights"];

fn properties<const N: usize>(pairs: [(&str, &str); N]) -> Properties {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn cluster(id: &str, region: &str) -> Properties {
    properties([(PROPERTY_CLUSTER_ID, id), (PROPERTY_REGION, region)])
}

#[test]
fn local_first_prefers_the_own_cluster_and_then_the_own_region() {
    let tiers = ClusterSelection::local_first().for_importer(&cluster("a", "eu"));
    let of = [cluster("a", "eu"), cluster("b", "eu"), cluster("c", "us"), properties([])].map(|one| tiers.of(&one));
    assert_eq!((of, tiers.of_discovered()), ([Some(0), Some(1), Some(2), Some(2)], Some(3)));
}

/// A cluster without a region is in nobody's region.
#[test]
fn clusters_without_a_property_do_not_have_it_in_common() {
    let tiers = ClusterSelection::local_first().for_importer(&properties([(PROPERTY_CLUSTER_ID, "a")]));
    let others = [properties([(PROPERTY_CLUSTER_ID, "b")]), cluster("c", "us")];
    assert_eq!(others.map(|one| tiers.of(&one)), [Some(2), Some(2)]);
}

#[test]
fn local_only_never_leaves_the_cluster() {
    let tiers = ClusterSelection::local_only().for_importer(&cluster("a", "eu"));
    assert_eq!([cluster("a", "us"), cluster("b", "eu")].map(|one| tiers.of(&one)), [Some(0), None]);
    assert_eq!(tiers.of_discovered(), None);
}

#[test]
fn selectors_are_those_of_the_draft() {
    let text = r#"[
        {"propertySelector": {
            "matchLabels": {"region.topology.k8s.io": "@SameAsImporter@"},
            "matchExpressions": [{"key": "gpu", "operator": "In", "values": ["high", "higher"]}]}},
        {"propertySelector": {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}}
    ]"#;
    let selection = ClusterSelection::read([Some(text), Some("None"), Some("50%"), None], NAMES).unwrap().unwrap();
    assert_eq!(selection.min_ready().percent(), 50);
    assert_eq!(ClusterSelection::from_published(&selection.published()), Ok(selection.clone()));
    let tiers = selection.for_importer(&cluster("a", "eu"));
    let with = |region: &str, gpu: Option<&str>| {
        let mut there = cluster("b", region);
        there.extend(gpu.map(|gpu| ("gpu".to_owned(), gpu.to_owned())));
        tiers.of(&there)
    };
    assert_eq!(
        [with("eu", Some("high")), with("eu", Some("low")), with("us", Some("high"))],
        [Some(0), Some(1), Some(1)]
    );
    assert_eq!(with("eu", None), None);
}

#[test]
fn what_is_published_reads_as_the_same() {
    for short in ["spread", "local-first", "local-only"] {
        let selection: ClusterSelection = short.parse().unwrap();
        assert_eq!(ClusterSelection::from_published(&selection.published()).as_ref(), Ok(&selection), "{short}");
        assert_eq!(selection.to_string(), short);
    }
}

#[test]
fn what_is_wrong_is_named_with_what_to_write() {
    let list = |selector: &str| format!("[{{\"propertySelector\": {selector}}}]");
    let many = format!("[{}]", vec![r#"{"propertySelector":{"matchLabels":{"a":"b"}}}"#; 17].join(","));
    let long = list(&format!(
        "{{\"matchExpressions\": [{{\"key\": \"a\", \"operator\": \"In\", \"values\": [{}]}}]}}",
        vec![format!("\"{}\"", "x".repeat(60)); 17].join(",")
    ));
    for (annotations, parts) in [
        ([Some("nearest"), None, None], ["selectors: \"nearest\"", "\"local-first\""]),
        ([Some("[]"), None, None], ["the list is empty", "\"spread\""]),
        ([Some("[{}]"), None, None], ["selectors:", "propertySelector"]),
        ([Some(&*list("{}")), None, None], ["selector 1: propertySelector is empty", "name a property"]),
        ([Some(&*list(r#"{"matchLabel": {"a": "b"}}"#)), None, None], ["unknown field", "matchLabel"]),
        ([Some(&*list(r#"{"matchLabels": {"a b": "c"}}"#)), None, None], ["\"a b\"", "ClusterProperty"]),
        ([Some(&*list(r#"{"matchLabels": {"a": "b c"}}"#)), None, None], ["\"b c\" is no value", SAME_AS_IMPORTER]),
        (
            [Some(&*list(r#"{"matchExpressions": [{"key": "a", "operator": "In"}]}"#)), None, None],
            ["In of a", "needs values"],
        ),
        (
            [
                Some(&*list(r#"{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}"#)),
                None,
                None,
            ],
            ["Exists of a", "takes no values"],
        ),
        ([Some(&*many), None, None], ["17 selectors", "at most 16"]),
        ([Some(&*long), None, None], ["bytes of at most 1000", "fewer or shorter"]),
        ([Some("local-first"), Some("Never"), None], ["fallback: \"Never\"", "\"AllClusters\" or \"None\""]),
        ([Some("local-first"), None, Some("101%")], ["min-ready: \"101%\"", "\"100%\""]),
        ([Some("local-first"), None, Some("0%")], ["min-ready: \"0%\"", "\"any\""]),
        ([None, Some("None"), None], ["fallback means nothing without selectors", "remove"]),
        ([None, None, Some("50%")], ["min-ready means nothing without selectors", "remove"]),
        ([Some("spread"), None, Some("50%")], ["mean nothing with \"spread\"", "selectors"]),
    ] {
        let [selectors, fallback, min_ready] = annotations;
        let error = ClusterSelection::read([selectors, fallback, min_ready, None], NAMES).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{annotations:?}: {error}");
    }
    let weights = |text| ClusterSelection::read([None, None, None, Some(text)], NAMES);
    assert!(weights("blue").unwrap_err().to_string().starts_with("weights: \"blue\" is no weight"));
    assert_eq!(ClusterSelection::read([None; 4], NAMES), Ok(None));
}

#[test]
fn weights_go_with_any_selection_and_are_published_with_it() {
    for (selectors, said) in [(None, "spread"), (Some("spread"), "spread"), (Some("local-first"), "local-first")] {
        let selection = ClusterSelection::read([selectors, None, None, Some("blue=90%")], NAMES).unwrap().unwrap();
        assert_eq!(selection.to_string(), format!("{said} with the weights blue=90%"));
        assert_eq!(ClusterSelection::from_published(&selection.published()), Ok(selection.clone()));
        assert!(!selection.is_spread() && selection.weights().rest() == 10);
    }
    assert!(ClusterSelection::from_published(r#"{"weights":{"blue":60,"green":60}}"#).is_err());
}
