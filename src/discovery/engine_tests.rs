use super::*;
use crate::call;
use cloudmap::{
    Lane, Listings, NamespaceKind, Read as _, Write as _,
    fake::{Fake, permit},
};
use instances::Owner;

fn settings() -> DiscoverySettings {
    let cluster = "c1".parse().unwrap();
    DiscoverySettings::new(Owner { clusterset: None, cluster, cluster_uid: "u".into() })
}

#[tokio::test(start_paused = true)]
async fn services_of_a_missing_namespace_leave_the_budget_to_others() {
    let (fake, now) = (Fake::new(), Instant::now());
    let settings = DiscoverySettings { calls_per_second: 1.0, ..settings() };
    let mut engine = Engine::new(&settings, now);
    engine.subscribe(&BTreeSet::from(["gone", "there"].map(Arc::from)), now);
    for name in ["gone", "there"] {
        let id = fake.registry().add_namespace(name, NamespaceKind::Http);
        fake.registry().add_service(&id, "web", "ecs", "");
    }
    let mut namespaces = fake.list_namespaces(Lane::Instances).await.unwrap();
    engine.done(Event::Namespaces(Ok(namespaces.clone().into())), now);
    for namespace in &namespaces {
        let result = fake.list_services(&namespace.id, Lane::Instances).await.map(Arc::from);
        engine.done(Event::Services { namespace: namespace.name.clone(), result }, now);
    }
    namespaces.retain(|namespace| *namespace.name == *"there");
    engine.done(Event::Namespaces(Ok(namespaces.into())), now);
    let call = engine.next(now);
    assert!(matches!(&call, Some(Call::Instances((name, _), _)) if **name == *"there"), "{call:?}");
}

#[tokio::test(start_paused = true)]
async fn subscriptions_that_come_and_go_leave_nothing_behind() {
    let fake = Fake::new();
    let settings = Arc::new(settings());
    let mut engine = Engine::new(&settings, Instant::now());
    for round in 0..20 {
        let name: Arc<str> = format!("shop-{round}").into();
        let namespace = fake.registry().add_namespace(&name, NamespaceKind::Http);
        let services = ["web", "api"].map(|s| fake.registry().add_service(&namespace, s, "ecs", ""));
        for subscribed in [[name.clone(), "absent".into()].into(), BTreeSet::new()] {
            engine.subscribe(&subscribed, Instant::now());
            let end = Instant::now() + Duration::from_mins(2);
            while Instant::now() < end {
                match engine.next(Instant::now()) {
                    Some(call) => {
                        let (cloudmap, settings) = (Arc::new(fake.clone()), settings.clone());
                        let listings = Listings::new(cloudmap.clone());
                        let event = call::perform(cloudmap, listings, settings, call).await;
                        engine.done(event, Instant::now());
                    }
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        }
        for service in services {
            fake.delete_service(&permit(), &service).await.unwrap();
        }
        engine.take_changed();
        let Engine { namespaces, schedule, found, changed, .. } = &engine;
        assert_eq!((namespaces.len(), schedule.len(), found.namespaces.len(), changed.len()), (0, 0, 0, 0));
    }
    assert!(fake.list_namespaces(Lane::Instances).await.unwrap().len() == 20 && engine.looking == 0);
}
