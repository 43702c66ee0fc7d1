//! Broken set-ups: each begins with one that is well, breaks one thing, and has exactly one finding, with its remedy.

mod in_cluster;
mod with_others;

use super::*;

/// A breakage; and the state, the place, and words of the one finding and of its remedy.
type Case = (fn(&mut Observation), State, &'static str, &'static str, &'static str);

/// What the leaders of both clusters say of their build.
fn build(it: &mut Observation, builds: [&str; 2]) {
    lease(it).build = Some(builds[0].to_owned());
    second(it).lease.as_mut().unwrap().as_mut().unwrap().build = Some(builds[1].to_owned());
}

/// A mirror of the registry may give it another name.
#[test]
fn the_same_build_under_two_tags_is_one_version() {
    let mut observation = healthy();
    controller(&mut observation).image = "mirror.example/cloudmap-mcs:stable".to_owned();
    build(&mut observation, ["0.1.0 (commit a, built x)"; 2]);
    let report = plan(&observation);
    let versions = report.0.iter().find(|finding| finding.subject == "versions").unwrap();
    assert_eq!((versions.state, versions.what.contains("commit a")), (State::Ok, true), "{}", versions.what);
}

#[test]
fn every_broken_set_up_is_named_with_its_remedy_and_nothing_else_is() {
    let cases = [in_cluster::CASES, with_others::CASES].concat().concat();
    assert!(cases.len() > 40);
    let mut wrong = BTreeMap::new();
    for (number, (breaks, state, place, what, remedy)) in cases.iter().enumerate() {
        let mut observation = healthy();
        breaks(&mut observation);
        let report = plan(&observation);
        let found: Vec<_> = report.0.iter().filter(|finding| finding.state != State::Ok).collect();
        let is_it = match &*found {
            [one] => {
                one.state == *state
                    && one.place == *place
                    && one.what.contains(what)
                    && one.remedy.as_ref().is_some_and(|it| it.contains(remedy))
            }
            _ => false,
        };
        if !is_it {
            wrong.insert((number, *what), format!("{found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
