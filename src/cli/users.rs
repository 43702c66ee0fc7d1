use std::{net::IpAddr, path::PathBuf, str::FromStr};

use clap::Args;

use super::{AwsArgs, OutputFormat};

/// Flags of `users`.
#[derive(Debug, Args)]
#[command(
    after_help = "It reads Route 53 Resolver query logs, the lines of CoreDNS' plugin `log`, CloudTrail data events and VPC flow logs, \
                        and recognises them by their content. Give all that you have: each shows other users.\n\n\
                        Exit status: 0 whether or not somebody was seen; 2 if there is nothing that it can read."
)]
pub struct UsersArgs {
    /// A name of Cloud Map: its DNS name, such as `orders.internal`, or namespace and service, as in `internal/orders`.
    #[arg(value_parser = subject)]
    pub name: String,
    /// Log files, folders with log files, or `-` for the standard input. Files may be compressed with gzip.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Read only the logs: neither a cluster nor AWS. Users then remain addresses, unless a log says who they are.
    #[arg(long, conflicts_with = "contexts")]
    pub offline: bool,
    /// Kubeconfig file. Without it: $KUBECONFIG, or ~/.kube/config, or the pod's own service account.
    #[arg(long, env = "CLOUDMAP_MCS_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Contexts of the kubeconfig, separated by commas, one for each cluster whose pods may use the name. Without it:
    /// one cluster, that of the current context.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub contexts: Vec<String>,
    /// How to reach the registry.
    #[command(flatten)]
    pub aws: AwsArgs,
    /// An address of one of the name's tasks, with the port if you know it, as in `10.0.1.4:8080` or
    /// `[2001:db8::4]:8080`. May be given several times. Flow logs are searched for these addresses and for those that
    /// are in Cloud Map now. Give those of tasks that ended, which Cloud Map no longer has.
    #[arg(long = "address", value_name = "ADDRESS")]
    pub addresses: Vec<TaskAddress>,
    /// The fields of flow logs in a custom format, as in `"${version} ${srcaddr} ..."`. Needed only if the files do not
    /// begin with a line that names the fields; files in S3 do.
    #[arg(long, value_name = "FIELDS")]
    pub flow_format: Option<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}

/// Where a task listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskAddress {
    /// The address.
    pub address: IpAddr,
    /// The port, if it is known.
    pub port: Option<u16>,
}

impl FromStr for TaskAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self { address, port: None });
        }
        let with_port: std::net::SocketAddr =
            text.parse().map_err(|_| format!("{text:?} is neither an address nor an address with a port"))?;
        Ok(Self { address: with_port.ip(), port: Some(with_port.port()) })
    }
}

fn subject(text: &str) -> Result<String, String> {
    let well = match text.split_once('/') {
        Some((namespace, service)) => !namespace.is_empty() && !service.is_empty() && !service.contains('/'),
        None => {
            text.trim_end_matches('.').split('.').count() > 1
                && !text.trim_end_matches('.').split('.').any(str::is_empty)
        }
    };
    if well && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "{text:?} is neither a DNS name such as orders.internal, nor NAMESPACE/SERVICE such as internal/orders"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_dns_name_or_a_namespace_and_a_service() {
        for well in
            ["orders.internal", "orders.internal.", "internal/orders", "a.corp/_http._tcp", "ORDERS.corp.example"]
        {
            assert!(subject(well).is_ok(), "{well}");
        }
        for bad in ["orders", "orders.", "", "/", "a/", "/b", "a/b/c", "a..b", "orders .internal", "örders.internal"] {
            assert!(subject(bad).unwrap_err().contains("NAMESPACE/SERVICE"), "{bad}");
        }
    }

    #[test]
    fn an_address_may_have_a_port() {
        let parsed = |text: &str| text.parse::<TaskAddress>().map(|it| (it.address.to_string(), it.port));
        assert_eq!(parsed("192.0.2.4"), Ok(("192.0.2.4".to_owned(), None)));
        assert_eq!(parsed("192.0.2.4:80"), Ok(("192.0.2.4".to_owned(), Some(80))));
        assert_eq!(parsed("2001:db8::4"), Ok(("2001:db8::4".to_owned(), None)));
        assert_eq!(parsed("[2001:db8::4]:80"), Ok(("2001:db8::4".to_owned(), Some(80))));
        assert!(parsed("orders").is_err());
    }
}
