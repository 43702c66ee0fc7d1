//! Corefiles as `coredns apply` leaves them, as CoreDNS itself loads them: in a network and a file system of its own, without a
//! cluster. It then waits for the API server in vain, and serves all the same.
//!
//! `COREDNS` names CoreDNS, and `PROGRAM` names cloudmap-mcs; `make test` compiles both. Linux and root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints for whoever runs it"
)]

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// Not about what `apply` writes: CoreDNS needs a file for one, and the other has a plugin that is not CoreDNS' own.
const LEFT_OUT: [&str; 2] = ["snippets", "unknown-plugin"];

fn coredns() -> Option<String> {
    let program = std::env::var("COREDNS").expect("COREDNS names coredns; COREDNS=skip leaves its tests out");
    if program == "skip" {
        eprintln!("skipped: COREDNS=skip, CoreDNS loads no Corefile");
        return None;
    }
    Some(program)
}

fn fixtures() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/commands/coredns/fixtures");
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    found.into_iter().map(|path| (name(&path), path)).filter(|(name, _)| !LEFT_OUT.contains(&&**name)).collect()
}

/// What `apply` makes of a Corefile; `None` if it refuses.
fn applied(path: &Path) -> Option<String> {
    let program = std::env::var("PROGRAM").expect("PROGRAM names cloudmap-mcs");
    let output = Command::new(program).args(["coredns", "apply", "--corefile"]).arg(path).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Waits until CoreDNS serves. Gives what it printed if it ended before, or has done neither for minutes.
fn loads(coredns: &str, name: &str, text: &str) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("cloudmap-mcs-corefile-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let text =
        text.replace("__PILLAR__CLUSTER__DNS__", "172.20.0.11").replace("__PILLAR__UPSTREAM__SERVERS__", "172.20.0.12");
    fs::write(folder.join("Corefile"), text).unwrap();
    // The files of a service account make CoreDNS believe that it is in a cluster. It serves after 5 s without an answer.
    let script = "ip link set lo up
        for address in 169.254.20.10 172.20.0.10; do ip address add $address/32 dev lo; done
        mount -t tmpfs none \"$(readlink -f /var/run)\"
        mkdir -p /var/run/secrets/kubernetes.io/serviceaccount
        echo token >/var/run/secrets/kubernetes.io/serviceaccount/token
        exec timeout --kill-after=5 300 \"$0\" -conf \"$1/Corefile\"";
    let (printed, prints) = io::pipe().unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "sh", "-ec", script, coredns])
        .arg(&folder)
        .envs([("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")])
        .envs([("DOMAIN", "cluster.local"), ("REVERSE", "in-addr.arpa")])
        .stdout(prints.try_clone().unwrap())
        .stderr(prints);
    let mut child = command.spawn().unwrap();
    // It has the other ends of the pipe, which would never be closed.
    drop(command);
    let (mut said, mut serves) = (String::new(), false);
    for line in BufReader::new(printed).lines().map_while(Result::ok) {
        // The banner comes when all server blocks listen.
        serves = line.starts_with("CoreDNS-");
        if serves {
            break;
        }
        said = format!("{said}{line}\n");
    }
    // `timeout` ends CoreDNS, too. It may have ended before.
    Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status().unwrap();
    child.wait().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    if serves { Ok(()) } else { Err(said) }
}

#[test]
fn coredns_loads_every_corefile_that_apply_writes_and_none_that_it_refuses() {
    let Some(coredns) = coredns() else { return };
    let wrong: Vec<_> = thread::scope(|scope| {
        let tries = fixtures().into_iter().map(|(name, path)| {
            let coredns = &coredns;
            scope.spawn(move || {
                let before = fs::read_to_string(&path).unwrap();
                match applied(&path) {
                    Some(after) => {
                        loads(coredns, &name, &after).err().map(|said| format!("{name} is not loaded: {said}\n{after}"))
                    }
                    // CoreDNS takes an invisible character for a part of a zone.
                    None if name == "byte-order-mark-inside" => None,
                    None => {
                        loads(coredns, &name, &before).ok().map(|()| format!("{name} is refused, and CoreDNS loads it"))
                    }
                }
            })
        });
        let tries: Vec<_> = tries.collect();
        tries.into_iter().filter_map(|it| it.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
