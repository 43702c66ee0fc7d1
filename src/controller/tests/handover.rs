//! Names that annotated Services share with exports, or give up for others.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    annotated::PYTHON,
    world::{Cluster, World, until},
};
use crate::{
    api::names::{ANNOTATION_TARGET_NAMESPACE, ANNOTATION_TARGET_SERVICE},
    cloudmap::NamespaceKind,
};

const WANTS: [(&str, &str); 2] = [(PYTHON[0], "internal"), (PYTHON[1], "web")];

async fn pair() -> (World, Cluster, Cluster) {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::Http);
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    (world, blue, green)
}

impl World {
    fn web(&self) -> Vec<String> {
        self.holds("internal", "web")
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_one_cluster_exports_and_another_annotates_has_one_name() {
    // Which of the claims is the older one is decided by the cluster's id where they date from one second.
    for (first, exports_here) in [("export", true), ("export", false), ("annotation", true), ("annotation", false)] {
        let (world, blue, green) = pair().await;
        let (exporting, annotating) = if exports_here { (&blue, &green) } else { (&green, &blue) };
        let export = || {
            exporting.put_service("web", 80);
            exporting.put_endpoints("web", &["10.0.0.1"]);
            let target = [(ANNOTATION_TARGET_NAMESPACE, "internal"), (ANNOTATION_TARGET_SERVICE, "web")];
            exporting.put_export("web", &target);
        };
        let annotate = || annotating.headless("web", &WANTS, &["10.1.0.1"]);
        if first == "export" {
            export();
            until("the export is registered", || world.web() == ["10.0.0.1"]).await;
            annotate();
        } else {
            annotate();
            until("the annotated Service is registered", || world.web() == ["10.1.0.1"]).await;
            export();
        }
        until("both are registered", || world.web() == ["10.0.0.1", "10.1.0.1"]).await;
        exporting.until_says("web", "Registered", "True", "Registered").await;
        sleep(Duration::from_mins(2)).await;
        assert_eq!(world.web(), ["10.0.0.1", "10.1.0.1"]);
        let notes = [&blue, &green].map(|cluster| cluster.objects.take_notes()).concat();
        assert!(notes.iter().all(|note| !note.reason.ends_with("Conflict")), "{notes:?}");
    }
}
