//! Metrics of the ledger: what this cluster writes, and what it reads of the others.

use std::time::Duration;

use super::{Family, Seen, Values, labelled, one};
use ledger::{driver::Status, remote::RemoteFigures};

/// All of the ledger.
pub(super) fn families() -> prometheus::Result<Vec<Family>> {
    Ok([own_state()?, own_writes()?, all_heads()?, other_clusters()?].into_iter().flatten().collect())
}

/// One value of the ledger.
fn ledger(read: fn(&Status) -> f64) -> impl Fn(&Seen) -> Values + Send + Sync + 'static {
    move |seen| one(seen.ledger.as_deref().map(read))
}

/// One time of each other cluster, in seconds.
fn remotes(read: fn(&RemoteFigures) -> Option<Duration>) -> impl Fn(&Seen) -> Values + Send + Sync + 'static {
    move |seen| {
        let remotes = seen.ledger.iter().flat_map(|status| &status.remotes);
        remotes.filter_map(|(cluster, remote)| Some((cluster.to_string(), read(remote)?.as_secs_f64()))).collect()
    }
}

fn own_state() -> prometheus::Result<Vec<Family>> {
    Ok(vec![
        Family::gauge(
            "cloudmap_mcs_ledger_epoch",
            "Epoch of the own ledger, which rises with each term of a leader",
            None,
            ledger(|status| status.epoch as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_delta_fill_ratio",
            "How full the delta in the own head is, from 0 to 1; at 1 it is flushed into pages",
            None,
            ledger(|status| status.figures.delta_occupancy),
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_pages",
            "Pages of the own ledger in Cloud Map. The kind is data (of the tree), run (changes that were appended to the tree), index or garbage",
            Some("kind"),
            |seen| {
                seen.ledger.as_deref().map_or_else(Values::new, |status| {
                    let figures = &status.figures;
                    labelled([
                        ("data", figures.data_pages as f64),
                        ("run", figures.run_pages as f64),
                        ("index", figures.index_pages as f64),
                        ("garbage", figures.garbage_pages as f64),
                    ])
                })
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_shards",
            "Cloud Map services for pages of the own ledger",
            None,
            ledger(|status| f64::from(status.figures.shards)),
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_last_flush_seconds",
            "How long the last flush of the own ledger took",
            None,
            ledger(|status| status.figures.flush_duration.unwrap_or_default().as_secs_f64()),
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_publish_latency_seconds",
            "Time from the last change of this cluster to the write that published it",
            None,
            ledger(|status| status.figures.publish_latency.unwrap_or_default().as_secs_f64()),
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_unpublished_seconds",
            "How long the oldest unpublished change of this cluster has been waiting; 0 if none waits",
            None,
            ledger(|status| status.figures.unpublished.unwrap_or_default().as_secs_f64()),
        )?,
    ])
}

fn own_writes() -> prometheus::Result<Vec<Family>> {
    Ok(vec![
        Family::counter(
            "cloudmap_mcs_ledger_head_writes_total",
            "Writes of the own head",
            ledger(|status| status.figures.head_writes as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_page_writes_total",
            "Writes of own pages",
            ledger(|status| status.figures.page_writes as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_page_deletions_total",
            "Deletions of own pages",
            ledger(|status| status.figures.page_deletions as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_flushes_total",
            "Flushes of the delta into pages",
            ledger(|status| status.figures.flushes as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_compactions_total",
            "Compactions: new trees of pages, each of which replaced the former tree and its runs",
            ledger(|status| status.figures.compactions as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_full_flushes_total",
            "Flushes that wrote every page anew",
            ledger(|status| status.figures.full_flushes as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_abandoned_flushes_total",
            "Flushes and compactions that were abandoned and begun again",
            ledger(|status| status.figures.flushes_abandoned as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_flush_quota_waits_total",
            "How often a flush waited because the quota of instances in a Cloud Map service was used up",
            ledger(|status| status.figures.flush_quota_waits as f64),
        )?,
    ])
}

fn all_heads() -> prometheus::Result<Vec<Family>> {
    Ok(vec![
        Family::gauge(
            "cloudmap_mcs_registry_readable",
            "1 if the last read of the heads in a registry succeeded; the registry is home, or the name of another one",
            Some("registry"),
            |seen| {
                let Some(status) = seen.ledger.as_deref() else { return Values::new() };
                let mut values = labelled([("home", f64::from(u8::from(status.readable)))]);
                let others = status.elsewhere.iter();
                values.extend(others.map(|(name, it)| (name.to_string(), f64::from(u8::from(it.is_none())))));
                values
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_heads",
            "Heads in the ledger, of all clusters, including those that left. From 1,000 heads on, the ledger cannot be read any more",
            None,
            ledger(|status| status.heads as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_ledger_ignored_heads",
            "Heads of the ClusterSet that are ignored because they cannot be read or contradict the ledger",
            None,
            ledger(|status| status.ignored.len() as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_ledger_read_bytes_total",
            "Bytes of other clusters' ledgers that were read",
            ledger(|status| status.bytes_read as f64),
        )?,
    ])
}

/// With a label that names the other cluster.
fn other_clusters() -> prometheus::Result<Vec<Family>> {
    Ok(vec![
        Family::gauge(
            "cloudmap_mcs_stream_connected",
            "1 while the leader of this cluster is connected by stream with the leader of the other cluster, 0 while it cannot reach that leader",
            Some("remote_cluster"),
            |seen| {
                let Some(status) = seen.ledger.as_deref() else { return Values::new() };
                let connected = status.connected.iter().flatten().map(|cluster| (cluster.to_string(), 1.0));
                connected.chain(status.unreachable.keys().map(|cluster| (cluster.to_string(), 0.0))).collect()
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_remote_lag_seconds",
            "Time from the writing of a cluster's newest change, by that cluster's clock, to its application here, by the clock of this \
             leader. If a later head with the same change came sooner, its time counts. Wrong by the difference of the clocks",
            Some("remote_cluster"),
            remotes(|remote| remote.lag),
        )?,
        Family::gauge(
            "cloudmap_mcs_remote_silent_seconds",
            "Time since the ledger of a cluster last advanced; 0 while the leader of that cluster is connected by stream",
            Some("remote_cluster"),
            remotes(|remote| Some(remote.silent)),
        )?,
        Family::gauge(
            "cloudmap_mcs_remote_memory_bytes",
            "Memory that the states and pages of a cluster take in this leader; --remote-memory limits the sum",
            Some("remote_cluster"),
            |seen| {
                let remotes = seen.ledger.iter().flat_map(|status| &status.remotes);
                remotes.map(|(cluster, remote)| (cluster.to_string(), remote.bytes as f64)).collect()
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_remote_accepted_timestamp_seconds",
            "When this cluster accepted the other cluster as a member of the ClusterSet for the first time, in seconds since 1970",
            Some("remote_cluster"),
            remotes(|remote| (remote.since > 0).then(|| Duration::from_millis(remote.since))),
        )?,
    ])
}
