//! The page in a real browser: Chromium, driven by ChromeDriver (`CHROMEDRIVER`).

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use cloudmap_mcs_integration::scenario::{Cluster, NAMES, World, eventually, holds, manifests};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    process::{Child, Command},
};

/// A folder that goes with this, and with it every process that was started with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("cloudmap-mcs-e2e-page-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // ChromeDriver takes Chromium along only where it ends in peace.
        let _ = std::process::Command::new("pkill").args(["-KILL", "-f"]).arg(&self.0).status();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that runs until this is dropped.
struct Program {
    _child: Child,
    /// Where it listens, from what it prints.
    address: String,
}

/// Starts a program, and waits for the line in which it says where it listens.
async fn start(command: &mut Command, before: &str) -> Result<Program> {
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let said = tokio::time::timeout(Duration::from_mins(5), first(&mut lines, before)).await;
    let address = said.with_context(|| format!("{command:?} does not say {before:?}"))??;
    // Nobody may block on a full pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(Program { _child: child, address })
}

async fn first(lines: &mut tokio::io::Lines<BufReader<impl AsyncRead + Unpin>>, before: &str) -> Result<String> {
    while let Some(line) = lines.next_line().await? {
        if let Some((_, rest)) = line.split_once(before) {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | ':'))).unwrap_or(rest.len());
            return Ok(rest[..end].trim_end_matches('.').to_owned());
        }
    }
    anyhow::bail!("it ended")
}

/// A tab of Chromium. The protocol is W3C WebDriver.
struct Browser {
    driver: Program,
    session: String,
}

impl Browser {
    async fn start(driver: &str, profile: &Path) -> Result<Self> {
        let driver = start(Command::new(driver).arg("--port=0"), "started successfully on port ").await?;
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1100,1000",
        ];
        let folder = format!("--user-data-dir={}", profile.display());
        let arguments: Vec<_> = arguments.into_iter().chain([folder.as_str()]).collect();
        let mut browser = Self { driver, session: String::new() };
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}});
        let session = browser.call("session", Some(&wanted)).await?;
        session["sessionId"].as_str().context("no session")?.clone_into(&mut browser.session);
        Ok(browser)
    }

    async fn call(&self, path: &str, body: Option<&Value>) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/{path}", self.driver.address);
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "300", &url]).kill_on_drop(true);
        if let Some(body) = body {
            command.args(["--header", "Content-Type: application/json", "--data", &body.to_string()]);
        }
        let output = command.output().await?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{path}: {}", String::from_utf8_lossy(&output.stderr)))?;
        ensure!(answer["value"]["error"].is_null(), "{path}: {answer}");
        Ok(answer["value"].clone())
    }

    async fn open(&self, url: &str) -> Result<()> {
        self.call(&format!("session/{}/url", self.session), Some(&json!({"url": url}))).await.map(drop)
    }

    /// The value of an expression in the page.
    async fn value(&self, expression: &str) -> Result<Value> {
        let script = json!({"script": format!("return {expression};"), "args": []});
        self.call(&format!("session/{}/execute/sync", self.session), Some(&script)).await
    }

    /// What a reader sees.
    async fn text(&self) -> Result<String> {
        Ok(self.value("document.body.innerText").await?.as_str().unwrap_or_default().to_owned())
    }

    async fn shows(&self, what: &[&str]) -> Result<()> {
        eventually("the page shows it", NAMES, async || {
            let text = self.text().await?;
            let missing = what.iter().find(|words| !text.contains(**words));
            holds(missing.is_none(), &format!("it shows {missing:?}"), &text)
        })
        .await
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Result<()> {
        let body = json!({"cmd": command, "params": parameters});
        self.call(&format!("session/{}/goog/cdp/execute", self.session), Some(&body)).await.map(drop)
    }

    /// Takes a picture in this color scheme.
    async fn picture(&self, scheme: &str) -> Result<Vec<u8>> {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await?;
        let picture = self.call(&format!("session/{}/screenshot", self.session), None).await?;
        Ok(BASE64_STANDARD.decode(picture.as_str().context("no picture")?)?)
    }

    async fn close(self) -> Result<()> {
        let url = format!("http://127.0.0.1:{}/session/{}", self.driver.address, self.session);
        Command::new("curl").args(["--silent", "--request", "DELETE", "--output", "/dev/null", &url]).status().await?;
        Ok(())
    }
}

/// `cloudmap-mcs page` for a cluster, on this machine.
async fn serve(cluster: &Cluster, folder: &Path) -> Result<Program> {
    let program = std::env::var("PROGRAM").context("PROGRAM is not set: it is the path of cloudmap-mcs")?;
    let endpoint = std::env::var("CLOUDMAP_ENDPOINT").context("CLOUDMAP_ENDPOINT is not set")?;
    let kubeconfig = folder.join("kubeconfig");
    tokio::fs::write(&kubeconfig, cluster.kubeconfig().await?).await?;
    let mut command = Command::new(program);
    command.arg("page").arg("--kubeconfig").arg(&kubeconfig).args(["--listen", "127.0.0.1:0"]);
    command.args(["--cloudmap-endpoint", &endpoint, "--region", "eu-central-1"]);
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    start(&mut command, "http://").await
}

#[expect(clippy::print_stdout, reason = "says that it tests nothing")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_names_clusters_and_what_is_wrong_without_reload() {
    let Some(driver) = std::env::var("CHROMEDRIVER").ok().filter(|driver| driver != "skip") else {
        return println!("skipped: CHROMEDRIVER names no ChromeDriver");
    };
    World::run("page", async |world| {
        let folder = Folder::new()?;
        let page = serve(world.pair()[0], &folder.0).await?;
        let browser = Browser::start(&driver, &folder.0.join("profile")).await?;
        let outcome = look(world, &browser, &format!("http://{}/", page.address)).await;
        browser.close().await?;
        outcome
    })
    .await;
}

async fn look(world: &World, browser: &Browser, url: &str) -> Result<()> {
    let [source, other] = world.pair();
    let namespace = world.namespace.as_str();
    let name = format!("{namespace}/web");
    browser.open(url).await?;
    browser.shows(&["What is wrong", &source.id, &other.id, "Cost a month", "Live, as of"]).await?;
    ensure!(!browser.text().await?.contains(&name), "nothing is exported yet");

    // Without a reload from here on.
    browser.value("window.stayed = true").await?;
    world.export(source, "web", 1).await?;
    world.followed(source, "web").await?;
    let exporter = format!("{} (1 of 1)", source.id);
    browser.shows(&[&name, &exporter, "ClusterSetIP"]).await?;
    world.apply(source, manifests::export("ghost")).await?;
    let ghost = format!("ServiceExport {namespace}/ghost");
    browser.shows(&[&ghost, "Valid=False NoService", "Create the Service, or delete the ServiceExport"]).await?;

    // The search leaves only what it asks for.
    let search = format!(
        "(() => {{ const box = document.getElementById('search'); box.value = '{namespace} web'; \
         box.dispatchEvent(new Event('input')); return document.querySelectorAll('#names tr').length; }})()"
    );
    ensure!(browser.value(&search).await? == 1, "the search finds one name");

    browser.value("document.querySelector('#names a').click()").await?;
    let ledger = format!("ledger of {}", source.id);
    browser.shows(&[&world.name("web"), &ledger, "EndpointSlices", "Nothing is wrong"]).await?;
    ensure!(browser.value("window.stayed").await? == true, "the page was loaded again");
    ensure!(browser.value("document.querySelectorAll('svg g').length > 5").await? == true, "there is a picture");
    // Nothing without a label, and nothing that only its color tells.
    let unlabelled = "[...document.querySelectorAll('input, svg')].filter((one) => !one.labels?.length && \
                      !one.ariaLabel && !one.getAttribute('aria-label')).length";
    ensure!(browser.value(unlabelled).await? == 0, "something has no label");
    let unmarked = "[...document.querySelectorAll('.state')].filter((one) => !/^[✓✗?–] /.test(one.textContent)).length";
    ensure!(browser.value(unmarked).await? == 0, "a state is told by color alone");

    let (light, dark) = (browser.picture("light").await?, browser.picture("dark").await?);
    ensure!(light != dark && light.len() > 10_000, "light and dark look the same");
    if let Ok(folder) = std::env::var("MCS_E2E_PICTURES") {
        tokio::fs::write(format!("{folder}/page-name-dark.png"), dark).await?;
        tokio::fs::write(format!("{folder}/page-name.png"), light).await?;
        browser.open(url).await?;
        browser.shows(&[&ghost]).await?;
        tokio::fs::write(format!("{folder}/page.png"), browser.picture("light").await?).await?;
    }
    Ok(())
}
