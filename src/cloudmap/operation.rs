//! The operations of Cloud Map that this project calls, in one table with everything that has to be known about an
//! operation.

use std::{fmt, time::Duration};

use super::limits::Rate;

/// After this time, an operation, or a call that had no answer, takes no effect any more. AWS documents no bound; operations
/// take seconds.
pub const LATEST_EFFECT: Duration = Duration::from_mins(1);

/// The part of Cloud Map that serves an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plane {
    /// Slow and free.
    Control,
    /// Fast, answered by replicas that lag, and billed per call.
    Discovery,
}

impl Plane {
    /// Price of a million calls in US dollars (AWS price list).
    pub const fn usd_per_million_calls(self) -> f64 {
        match self {
            Self::Control => 0.0,
            Self::Discovery => 1.0,
        }
    }
}

/// Whether an operation changes anything in Cloud Map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// It changes nothing.
    Read,
    /// It changes something.
    Write,
}

/// `Name: Plane, Access, (requests a second, burst, part of the burst for the ledger only)`.
macro_rules! operations {
    ($($name:ident: $plane:ident, $access:ident, ($per_second:expr, $burst:expr, $reserve:expr);)*) => {
        /// One API operation. The name is that of AWS's documentation and of IAM actions (`servicediscovery:<name>`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            $(#[doc = concat!("`servicediscovery:", stringify!($name), "`")] $name,)*
        }

        impl Operation {
            /// All operations.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name that AWS uses.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The part of Cloud Map that serves it, which determines its price.
            pub const fn plane(self) -> Plane {
                match self {
                    $(Self::$name => Plane::$plane,)*
                }
            }

            /// Whether it changes anything.
            pub const fn access(self) -> Access {
                match self {
                    $(Self::$name => Access::$access,)*
                }
            }

            /// How often this project calls it at most, unless [`Rates`](super::Rates) are changed.
            pub const fn rate(self) -> Rate {
                match self {
                    $(Self::$name => Rate::new($per_second, $burst, $reserve),)*
                }
            }
        }
    };
}

// For most operations these are the rates of the AWS Cloud Map MCS Controller, whose comments call them AWS's default
// limits, and which its users run with. For DiscoverInstances it is half of the published quota (1,000/s, burst 2,000
// per account and region), because several clusters share it. Operations without known limits get those of the most
// similar operation. Nobody waits for what ListInstances and GetInstancesHealthStatus read, and each call of a burst would open
// a connection.
operations! {
    ListNamespaces: Control, Read, (0.5, 5.0, 1.0);
    GetNamespace: Control, Read, (5.0, 50.0, 0.0);
    CreateHttpNamespace: Control, Write, (0.5, 5.0, 0.0);
    CreatePrivateDnsNamespace: Control, Write, (0.5, 5.0, 0.0);
    DeleteNamespace: Control, Write, (0.5, 5.0, 0.0);
    ListServices: Control, Read, (2.0, 10.0, 0.0);
    GetService: Control, Read, (20.0, 50.0, 0.0);
    CreateService: Control, Write, (5.0, 50.0, 0.0);
    UpdateService: Control, Write, (5.0, 50.0, 0.0);
    DeleteService: Control, Write, (5.0, 50.0, 0.0);
    RegisterInstance: Control, Write, (50.0, 100.0, 40.0);
    DeregisterInstance: Control, Write, (50.0, 100.0, 40.0);
    GetOperation: Control, Read, (100.0, 200.0, 60.0);
    ListInstances: Control, Read, (50.0, 10.0, 0.0);
    DiscoverInstances: Discovery, Read, (500.0, 1000.0, 200.0);
    GetInstancesHealthStatus: Control, Read, (50.0, 10.0, 0.0);
    UpdateInstanceCustomHealthStatus: Control, Write, (50.0, 50.0, 0.0);
    ListTagsForResource: Control, Read, (5.0, 50.0, 0.0);
    TagResource: Control, Write, (5.0, 50.0, 0.0);
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;

    #[test]
    fn names_distinguish_reads_from_writes_and_rates_leave_something_for_instances() {
        for operation in Operation::ALL {
            let reads = ["List", "Get", "Discover"].iter().any(|verb| operation.name().starts_with(verb));
            assert_eq!(operation.access() == Access::Read, reads, "{operation}");
            let Rate { per_second, burst, reserve } = operation.rate();
            assert!(per_second > 0.0 && burst >= 1.0 + reserve, "{operation}");
        }
    }

    #[test]
    fn the_documented_rates_are_the_real_ones() {
        let document = fs::read_to_string(base::repository().join("docs/operations.md")).unwrap();
        let table = document.split("## Rates and quotas").nth(1).unwrap().split("\n\n").nth(2).unwrap();
        let mut documented = BTreeMap::new();
        for row in table.lines().skip(2) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let number = |cell: &str| if cell.is_empty() { 0.0 } else { cell.replace(',', "").parse().unwrap() };
            let rate = Rate::new(number(cells[1]), number(cells[2]), number(cells[3]));
            documented.extend(cells[0].split('`').skip(1).step_by(2).map(|name| (name, rate)));
        }
        let kept = Operation::ALL.iter().map(|operation| (operation.name(), operation.rate())).collect();
        assert_eq!(documented, kept);
    }
}
