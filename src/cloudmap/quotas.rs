//! Quotas and prices of AWS, as documented. `docs/operations.md` and `docs/costs.md` have the same figures.

/// Namespaces in an account and region, unless AWS has raised the quota.
pub const NAMESPACES: usize = 50;
/// Instances in a namespace, unless AWS has raised the quota.
pub const INSTANCES_PER_NAMESPACE: usize = 2_000;
/// Instances in a service. AWS does not raise it.
pub const INSTANCES_PER_SERVICE: usize = 1_000;
/// Tags of a resource. AWS does not raise it.
pub const TAGS: usize = 50;
/// Price of an instance and month in US dollars.
pub const USD_PER_INSTANCE: f64 = 0.10;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn document(name: &str) -> String {
        fs::read_to_string(base::repository().join("docs").join(name)).unwrap()
    }

    #[test]
    fn the_documents_have_these_figures() {
        let (operations, costs) = (document("operations.md"), document("costs.md"));
        for row in [
            format!("| namespaces per region | {NAMESPACES} | yes |"),
            "| instances per namespace | 2,000 | yes |".to_owned(),
            "| instances per service | 1,000 | no |".to_owned(),
        ] {
            assert!(operations.contains(&row), "{row}");
        }
        assert_eq!((INSTANCES_PER_NAMESPACE, INSTANCES_PER_SERVICE), (2_000, 1_000));
        assert!(costs.contains(&format!("| instances | {USD_PER_INSTANCE:.2} USD per instance and month |")));
    }
}
