//! A task that looks for others: they say what they ask, and follow the answers. What it looks at, and when, is decided by a
//! [`Planner`], which makes no calls and reads no clock.

use std::sync::Arc;

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::env;

/// When to look at what, and what was found. Makes no calls and reads no clock.
pub trait Planner: Default + Send + 'static {
    /// What questions are about.
    type Key: Send;
    /// What is asked about a key.
    type Question: Send;
    /// What a look finds.
    type Found: Send;
    /// What is asked at one time.
    type Questions: Default + Send + Sync + 'static;
    /// All that is known.
    type Answers: Default + Clone + PartialEq + Send + Sync + 'static;

    /// So many looks are in flight at the same time.
    const IN_FLIGHT: usize;

    /// Takes new questions, and forgets what is no longer asked.
    fn ask(&mut self, asked: &Self::Questions, now: Instant);

    /// The next look, if one is due.
    fn next(&mut self, now: Instant) -> Option<(Self::Key, Self::Question)>;

    /// When to call [`next`](Self::next) again.
    fn wake(&self) -> Option<Instant>;

    /// Takes what a look found. It answers what was asked when the look began, and no more.
    fn answered(&mut self, key: &Self::Key, question: &Self::Question, found: Self::Found, now: Instant);

    /// What is known.
    fn answers(&self) -> &Self::Answers;
}

/// The task. It ends when this is dropped.
#[derive(Debug)]
pub struct Inquiry<P: Planner> {
    asked: watch::Sender<Arc<P::Questions>>,
    answers: watch::Receiver<Arc<P::Answers>>,
    task: JoinHandle<()>,
}

impl<P: Planner> Inquiry<P> {
    /// Starts the task. `look` makes the calls of one look, and gives its key and question back.
    pub fn start<F>(look: impl Fn(P::Key, P::Question) -> F + Send + 'static) -> Self
    where
        F: Future<Output = (P::Key, P::Question, P::Found)> + Send + 'static,
    {
        let (asked, questions) = watch::channel(Arc::default());
        let (sender, answers) = watch::channel(Arc::default());
        Self { asked, answers, task: env::spawn(follow::<P, F>(look, questions, sender)) }
    }

    /// Sets all that is asked.
    pub fn ask(&self, asked: Arc<P::Questions>) {
        self.asked.send_replace(asked);
    }

    /// The answers, and their changes.
    pub fn answers(&self) -> watch::Receiver<Arc<P::Answers>> {
        self.answers.clone()
    }
}

impl<P: Planner> Drop for Inquiry<P> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow<P: Planner, F: Future<Output = (P::Key, P::Question, P::Found)>>(
    look: impl Fn(P::Key, P::Question) -> F,
    mut asked: watch::Receiver<Arc<P::Questions>>,
    answers: watch::Sender<Arc<P::Answers>>,
) {
    let mut agenda = P::default();
    let mut looks = FuturesUnordered::new();
    loop {
        while looks.len() < P::IN_FLIGHT
            && let Some((key, question)) = agenda.next(Instant::now())
        {
            looks.push(look(key, question));
        }
        let wake = agenda.wake().filter(|_| looks.len() < P::IN_FLIGHT);
        tokio::select! {
            biased;
            changed = asked.changed() => {
                if changed.is_err() {
                    return;
                }
                agenda.ask(&asked.borrow_and_update(), Instant::now());
            }
            Some((key, question, found)) = looks.next() => agenda.answered(&key, &question, found, Instant::now()),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => continue,
        }
        answers.send_if_modified(|held| {
            let changed = **held != *agenda.answers();
            if changed {
                *held = Arc::new(agenda.answers().clone());
            }
            changed
        });
    }
}
