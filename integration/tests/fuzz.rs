//! What others wrote is decoded without a panic, in bounded time, and means the same when it is written again: some inputs of
//! each target. `make fuzz` tries more.

use cloudmap_mcs_integration::fuzz::{
    campaign::{Plan, run},
    generate::Generator,
    targets,
};

#[test]
fn no_input_of_the_first_thousands_ends_a_decoder_or_comes_back_as_another() {
    for target in targets() {
        let report = run(&target, &Plan::of(1, target.quick));
        let failure = report.failure.as_ref().map(|failure| failure.text(target.name, 1));
        assert!(failure.is_none(), "{}", failure.unwrap_or_default());
        assert!(report.accepted > target.quick / 100, "{}: nearly everything is refused: {report:?}", target.name);
    }
}

#[test]
fn seed_and_number_determine_an_input() {
    for target in targets() {
        let (one, other) = (Generator::new(target), Generator::new(target));
        let number = one.valid() + 7;
        assert_eq!(one.input(3, number), other.input(3, number), "{}", target.name);
        assert!((0..8).any(|n| one.input(3, number + n) != one.input(4, number + n)), "{}", target.name);
    }
}

#[test]
fn targets_have_names_of_their_own_and_valid_inputs() {
    let mut names: Vec<_> = targets().iter().map(|target| target.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(targets().iter().all(|target| Generator::new(*target).valid() > 0));
}
