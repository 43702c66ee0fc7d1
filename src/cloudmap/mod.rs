//! AWS Cloud Map behind a narrow port: [`CloudMap`] has the verbs that this project needs, with errors sorted by what
//! the caller can do about them. Everything above speaks to the port, so that it also runs against a simulated
//! registry under simulated time.

mod port;

pub use port::{
    Attributes, CloudMap, CreateService, Discovery, DnsConfig, DnsRecord, Error, ErrorKind, Instance, Lane, Namespace,
    NamespaceKind, NewService, OperationId, OperationState, RecordType, Service,
};
