//! Who leads while AWS does not answer a replica, or denies it everything.

use super::*;

/// A Lease, the replica that leads, and one that stands by.
async fn leader_and_standby() -> (Shared, Replica, Replica) {
    let shared = Shared::default();
    let first = Replica::start_working(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start_working(&shared, "b");
    (shared, first, second)
}

/// As in a zone whose NAT gateway is down, or on a node whose EKS Pod Identity Agent has crashed.
#[tokio::test(start_paused = true)]
async fn a_leader_that_aws_does_not_answer_makes_room_for_one_that_it_answers() {
    let (shared, first, second) = leader_and_standby().await;
    seconds(300).await;
    assert!(first.leadership.is_leader());
    assert_eq!(second.calls(), 0, "the leader is well");
    first.reach_aws(false);
    let unanswered = Instant::now();
    let mut asked = 0;
    while !second.leadership.is_leader() {
        asked = second.calls();
        sleep(Duration::from_millis(100)).await;
        assert!(!(first.leadership.is_leader() && second.leadership.is_leader()));
    }
    assert!((60..105).contains(&unanswered.elapsed().as_secs()), "{:?}", unanswered.elapsed());
    assert_eq!(asked, 1);
    for _ in 0..300 {
        seconds(1).await;
        assert!(second.leadership.is_leader() && !first.leadership.is_leader());
    }
    let record = shared.record();
    assert_eq!((record.yields, record.bid), (None, None));
    second.kill();
    let died = Instant::now();
    first.leadership.acquired().await;
    assert!(died.elapsed() < Duration::from_secs(17), "a leader without AWS is better than none: {:?}", died.elapsed());
}

/// A new leader would know less than the one that has read the registry.
#[tokio::test(start_paused = true)]
async fn the_leader_stays_while_aws_answers_nobody_and_when_aws_is_back() {
    let (shared, first, second) = leader_and_standby().await;
    let reach_aws = |reached| [&first, &second].into_iter().for_each(|replica| replica.reach_aws(reached));
    reach_aws(false);
    for _ in 0..3600 {
        seconds(1).await;
        assert!(first.leadership.is_leader() && !second.leadership.is_leader());
        assert_eq!(shared.record().bid, None);
    }
    let yields = shared.record().yields.unwrap();
    assert!(yields.starts_with("AWS has answered none of its calls for 35"), "{yields}");
    assert!((100..=120).contains(&second.calls()), "{} calls: one in half a minute", second.calls());
    // At each moment between two calls of the standby.
    for phase in 0..30 {
        reach_aws(true);
        seconds(60).await;
        assert!(first.leadership.is_leader(), "phase {phase}");
        assert_eq!(shared.record().yields, None);
        reach_aws(false);
        seconds(120 + phase).await;
        assert!(first.leadership.is_leader() && shared.record().yields.is_some(), "phase {phase}");
    }
    for replica in [&first, &second] {
        replica.trouble.store(true, Ordering::Relaxed);
    }
    seconds(4).await;
    assert_eq!(shared.record().yields.as_deref(), Some("a frozen cache"), "it comes first");
}

/// As on a node whose pods get the role of the node. The leader knows the registry, and AWS may answer it again.
#[tokio::test(start_paused = true)]
async fn the_leader_stays_while_aws_denies_everything_to_the_standby() {
    let (_, first, second) = leader_and_standby().await;
    first.reach_aws(false);
    second.deny();
    for _ in 0..600 {
        seconds(1).await;
        assert!(first.leadership.is_leader() && !second.leadership.is_leader());
    }
    assert!(second.calls() > 10);
    // Once it may list namespaces, it leads.
    second.reach_aws(true);
    let allowed = Instant::now();
    second.leadership.acquired().await;
    assert!(allowed.elapsed() < Duration::from_secs(75), "{:?}", allowed.elapsed());
}

/// As on a node that lost EKS Pod Identity, so that its pods get the role of the node.
#[tokio::test(start_paused = true)]
async fn a_leader_that_aws_denies_everything_makes_room_for_one_that_it_lets_in() {
    let (shared, first, second) = leader_and_standby().await;
    seconds(300).await;
    first.deny();
    let (denied, mut said) = (Instant::now(), None);
    while !second.leadership.is_leader() {
        let record = shared.record();
        said = record.yields.or(said);
        sleep(Duration::from_millis(100)).await;
    }
    assert!((60..110).contains(&denied.elapsed().as_secs()), "{:?}", denied.elapsed());
    assert!(said.as_ref().is_some_and(|said| said.starts_with("AWS has denied all of its calls for ")), "{said:?}");
    for _ in 0..300 {
        seconds(1).await;
        assert!(second.leadership.is_leader() && !first.leadership.is_leader());
    }
}

#[tokio::test(start_paused = true)]
async fn the_leader_stays_while_aws_denies_everything_to_everybody_and_when_it_lets_them_in() {
    let (shared, first, second) = leader_and_standby().await;
    first.deny();
    second.deny();
    for _ in 0..3600 {
        seconds(1).await;
        assert!(first.leadership.is_leader() && !second.leadership.is_leader());
        assert_eq!(shared.record().bid, None);
    }
    let yields = shared.record().yields.unwrap();
    assert!(yields.starts_with("AWS has denied all of its calls for 35"), "{yields}");
    first.reach_aws(true);
    second.reach_aws(true);
    seconds(60).await;
    assert!(first.leadership.is_leader());
    assert_eq!(shared.record().yields, None);
}

/// As with a role that may not discover instances: before it has read the ledger, a leader calls nothing else. A standby with
/// the same role would be let in, and yield in its turn.
#[tokio::test(start_paused = true)]
async fn a_leader_that_lacks_one_permission_leads_on_even_if_it_makes_no_other_calls() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    first.aws.registry().failing.insert("denied".into(), ErrorKind::AccessDenied);
    for _ in 0..600 {
        assert!(first.cloudmap.get_service("denied", Lane::Instances).await.is_err());
        seconds(5).await;
        assert!(first.leadership.is_leader());
        assert_eq!(shared.record().yields, None);
    }
    assert_eq!(second.calls(), 0);
    assert!(first.calls() <= 100, "{} calls", first.calls());
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_aws_does_not_answer_either_replaces_a_dead_leader() {
    let (_, first, second) = leader_and_standby().await;
    first.reach_aws(false);
    second.reach_aws(false);
    seconds(300).await;
    assert!(first.leadership.is_leader() && second.calls() > 0);
    first.kill();
    let died = Instant::now();
    second.leadership.acquired().await;
    assert!(died.elapsed() < Duration::from_secs(17), "{:?}", died.elapsed());
}

/// Another replica has offered to lead, and died.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_released_because_aws_does_not_answer_is_left_to_others_for_a_minute() {
    let shared = Shared::default();
    let first = Replica::start_working(&shared, "a");
    first.leadership.acquired().await;
    first.reach_aws(false);
    seconds(90).await;
    shared.offer("b");
    seconds(4).await;
    for _ in 0..54 {
        assert_eq!(shared.holder(), None);
        assert!(!first.leadership.is_leader());
        seconds(1).await;
    }
    seconds(10).await;
    assert!(first.leadership.is_leader());
}
