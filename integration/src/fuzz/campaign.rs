//! Many inputs of a target on all cores, and what came of them.

use std::{
    cell::RefCell,
    fmt::Write as _,
    fs::File,
    os::unix::fs::FileExt as _,
    panic::{self, AssertUnwindSafe},
    process,
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Target, Verdict, generate::Generator};

/// An input that takes longer on its own is a failure. Debug builds are slower.
const SLOW: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
/// An input that takes longer is not waited for.
const HANGS: Duration = Duration::from_mins(1);
/// How much of an input is printed.
const SHOWN: usize = 16 << 10;

/// Which inputs.
#[derive(Debug)]
pub struct Plan {
    /// The seed of all of them.
    pub seed: u64,
    /// The number of the first one.
    pub first: u64,
    /// How many; without a number, as many as the time allows.
    pub inputs: Option<u64>,
    /// For how long.
    pub time: Option<Duration>,
    /// Threads.
    pub threads: usize,
    /// Where each thread writes the number of its input, eight bytes each, for whoever watches the process.
    pub positions: Option<File>,
}

impl Plan {
    /// This number of inputs from the first one on.
    pub fn of(seed: u64, inputs: u64) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self { seed, first: 0, inputs: Some(inputs), time: None, threads, positions: None }
    }
}

/// What came of a target.
#[derive(Debug, Clone)]
pub struct Report {
    /// How many inputs were tried.
    pub inputs: u64,
    /// How many of them were accepted.
    pub accepted: u64,
    /// For how long.
    pub elapsed: Duration,
    /// The first failure, by number.
    pub failure: Option<Failure>,
}

/// An input for which a property does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub number: u64,
    /// The input.
    pub input: Vec<u8>,
    /// What is wrong.
    pub what: String,
}

impl Failure {
    /// A text for people, with the command that replays it.
    pub fn text(&self, target: &str, seed: u64) -> String {
        let Self { number, input, what } = self;
        let shown = &input[..input.len().min(SHOWN)];
        let hex = shown.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a text cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let rest = if shown.len() < input.len() { "..." } else { "" };
        let text = String::from_utf8_lossy(shown);
        format!(
            "{target}, seed {seed}, input {number} ({} bytes): {what}\n  hex: {hex}{rest}\n  text: {text:?}{rest}\n  replay: \
             integration/fuzz.sh --target {target} --seed {seed} --number {number}",
            input.len()
        )
    }
}

/// What all threads share.
struct Run<'a> {
    target: &'a Target,
    generator: Generator,
    plan: &'a Plan,
    begin: Instant,
    next: AtomicU64,
    tried: AtomicU64,
    accepted: AtomicU64,
    failed: AtomicBool,
    failures: Mutex<Vec<Failure>>,
    /// What each thread is at, and since when.
    at: Vec<Mutex<Option<(u64, Instant)>>>,
}

/// Tries inputs of a target until one fails. If one hangs, this prints it and ends the process.
pub fn run(target: &Target, plan: &Plan) -> Report {
    listen();
    let run = Run {
        target,
        generator: Generator::new(*target),
        plan,
        begin: Instant::now(),
        next: AtomicU64::new(plan.first),
        tried: AtomicU64::new(0),
        accepted: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        failures: Mutex::default(),
        at: (0..plan.threads).map(|_| Mutex::default()).collect(),
    };
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..plan.threads).map(|slot| scope.spawn(move || run.work(slot))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            run.watch();
            thread::sleep(Duration::from_millis(5));
        }
    });
    let mut failures = run.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.number);
    Report {
        inputs: run.tried.into_inner(),
        accepted: run.accepted.into_inner(),
        elapsed: run.begin.elapsed(),
        failure: failures.into_iter().next(),
    }
}

impl Run<'_> {
    fn is_over(&self, number: u64) -> bool {
        self.failed.load(Ordering::Relaxed)
            || self.plan.inputs.is_some_and(|inputs| number - self.plan.first >= inputs)
            || self.plan.time.is_some_and(|time| self.begin.elapsed() >= time)
    }

    fn work(&self, slot: usize) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if self.is_over(number) {
                return;
            }
            if let Some(positions) = &self.plan.positions {
                // Only a process that ends needs it.
                let _ = positions.write_all_at(&number.to_be_bytes(), slot as u64 * 8);
            }
            self.enter(slot, Some((number, Instant::now())));
            let input = self.generator.input(self.plan.seed, number);
            let verdict = self.judge(number, &input);
            self.enter(slot, None);
            self.tried.fetch_add(1, Ordering::Relaxed);
            match verdict {
                Ok(accepted) => drop(self.accepted.fetch_add(accepted.into(), Ordering::Relaxed)),
                Err(what) => {
                    self.failed.store(true, Ordering::Relaxed);
                    let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(Failure { number, input, what });
                }
            }
        }
    }

    fn enter(&self, slot: usize, at: Option<(u64, Instant)>) {
        *self.at[slot].lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn judge(&self, number: u64, input: &[u8]) -> Verdict {
        let (verdict, first) = timed(self.target, input);
        // Others of the machine may have had the processor.
        let is_slow = first > SLOW && (0..3).all(|_| timed(self.target, input).1 > SLOW);
        match verdict {
            Ok(_) if is_slow => Err(format!("it took {:.1} s", first.as_secs_f64())),
            Ok(false) if number < self.generator.valid() => Err("a valid input was not accepted".to_owned()),
            verdict => verdict,
        }
    }

    #[expect(clippy::print_stderr, reason = "nobody else can say it: the thread does not end")]
    fn watch(&self) {
        for slot in &self.at {
            let at = *slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((number, _)) = at.filter(|(_, since)| since.elapsed() > HANGS) {
                let input = self.generator.input(self.plan.seed, number);
                let what = format!("it takes longer than {} s", HANGS.as_secs());
                eprintln!("{}", Failure { number, input, what }.text(self.target.name, self.plan.seed));
                process::exit(1);
            }
        }
    }
}

fn timed(target: &Target, input: &[u8]) -> (Verdict, Duration) {
    let begin = Instant::now();
    LISTENS.set(true);
    let verdict = panic::catch_unwind(AssertUnwindSafe(|| (target.check)(input)));
    LISTENS.set(false);
    let said = || SAID.take().unwrap_or_else(|| "a panic".to_owned());
    (verdict.unwrap_or_else(|_| Err(said())), begin.elapsed())
}

thread_local! {
    /// Whether a panic of this thread is a failure of an input.
    static LISTENS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// What the last such panic said.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what panics of inputs say, with their place, instead of printing it.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if LISTENS.get() {
                SAID.set(Some(panic.to_string().replace('\n', " ")));
            } else {
                others(panic);
            }
        }));
    });
}
