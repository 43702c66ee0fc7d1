use std::sync::Mutex as Plain;

use super::*;

/// Gives sessions of a length, or fails.
#[derive(Debug, Default)]
struct Giver(Plain<(usize, Option<SystemTime>, &'static str)>);

impl ProvideCredentials for Giver {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        let credentials = |end| Credentials::new(format!("KEY{}", state.0), "secret", None, Some(end), "test");
        future::ProvideCredentials::ready(
            state.1.map(credentials).ok_or_else(|| CredentialsError::not_loaded(format!("away {}", state.2))),
        )
    }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

struct Bed {
    giver: Arc<Giver>,
    held: Held,
}

impl Bed {
    fn new() -> Self {
        #[derive(Debug)]
        struct Shared(Arc<Giver>);
        impl ProvideCredentials for Shared {
            fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
            where
                Self: 'a,
            {
                self.0.provide_credentials()
            }
        }
        let giver = Arc::new(Giver::default());
        let provider = SharedCredentialsProvider::new(Shared(Arc::clone(&giver)));
        Self { giver, held: Held::new(provider, Duration::from_secs(1)) }
    }

    /// Lets sessions end at this time; `None`: nobody gives any.
    fn until(&self, end: Option<u64>) {
        self.giver.0.lock().unwrap().1 = end.map(at);
    }

    fn asked(&self) -> usize {
        self.giver.0.lock().unwrap().0
    }

    async fn key(&self, now: u64) -> Result<String, String> {
        let credentials = self.held.credentials(at(now)).await;
        credentials.map(|it| it.access_key_id().to_owned()).map_err(|error| error.to_string())
    }
}

#[tokio::test]
async fn a_session_is_renewed_before_its_end_and_kept_while_nobody_gives_another() {
    let bed = Bed::new();
    bed.until(Some(3600));
    assert_eq!(bed.key(0).await.unwrap(), "KEY1");
    assert_eq!(bed.key(3600 - 301).await.unwrap(), "KEY1");
    bed.until(None);
    assert_eq!(bed.key(3600 - 300).await.unwrap(), "KEY1", "it is good for five minutes more");
    assert_eq!(
        (bed.key(3600 - 290).await.unwrap(), bed.asked()),
        ("KEY1".to_owned(), 2),
        "not each call asks for another"
    );
    assert_eq!((bed.key(3600 - 100).await.unwrap(), bed.asked()), ("KEY1".to_owned(), 3));
    bed.until(Some(7200));
    assert_eq!(bed.key(3600 - 70).await.unwrap(), "KEY4");
    bed.until(None);
    assert!(bed.key(7200 - 10).await.is_err(), "what has ended is not used");
    bed.until(Some(9000));
    assert!(bed.key(7200).await.is_ok(), "and is asked for at once");
}

#[tokio::test]
async fn sessions_that_are_always_short_are_not_renewed_with_every_call() {
    let bed = Bed::new();
    bed.until(Some(120));
    for now in 0..19 {
        assert_eq!(bed.key(now).await.unwrap(), "KEY1");
    }
    bed.until(Some(140));
    assert_eq!(bed.key(20).await.unwrap(), "KEY2");
}

#[tokio::test]
async fn what_is_given_up_is_asked_for_anew_and_a_refusal_gives_up_what_is_below() {
    let (above, below) = (Bed::new(), Bed::new());
    for bed in [&above, &below] {
        bed.until(Some(3600));
    }
    let held = above.held.clone().above(below.held.clone());
    below.key(0).await.unwrap();
    held.credentials(at(0)).await.unwrap();
    held.forget();
    assert_eq!(held.credentials(at(0)).await.unwrap().access_key_id(), "KEY2");
    held.forget();
    above.until(None);
    held.credentials(at(1)).await.unwrap_err();
    assert_eq!(below.key(1).await.unwrap(), "KEY1", "who is away says nothing of what is below");
    above.giver.0.lock().unwrap().2 = "ExpiredTokenException";
    held.credentials(at(2)).await.unwrap_err();
    assert_eq!(below.key(2).await.unwrap(), "KEY2");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_credentials_hears_that_they_are_late_and_good_ones_are_used_meanwhile() {
    #[derive(Debug)]
    struct Silent;
    impl ProvideCredentials for Silent {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(std::future::pending())
        }
    }
    let held = Held::new(SharedCredentialsProvider::new(Silent), Duration::from_secs(4));
    let began = tokio::time::Instant::now();
    let (one, other) = tokio::join!(held.credentials(at(0)), held.credentials(at(0)));
    for answer in [one, other] {
        assert!(matches!(answer, Err(CredentialsError::ProviderTimedOut(_))), "{answer:?}");
    }
    assert_eq!(began.elapsed(), Duration::from_secs(4), "nobody waits for the wait of another one");
    let ageing = Credentials::new("KEY", "secret", None, Some(at(1000)), "test");
    held.state().credentials = Some((ageing, at(0)));
    let began = tokio::time::Instant::now();
    let (one, other) = tokio::join!(held.credentials(at(800)), async {
        let answer = held.credentials(at(800)).await;
        (answer, began.elapsed())
    });
    assert!(one.is_ok() && other.0.is_ok());
    assert_eq!(other.1, Duration::ZERO, "one call asks for others");
}
