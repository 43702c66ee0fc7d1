//! Inputs of several fields, such as an instance with its attributes. Whatever happens to the bytes, they are fields.

use cloudmap::{Attributes, Instance};

/// Is between two fields. No encoder writes these bytes often.
const BETWEEN: [u8; 3] = [0xff, 0xfe, 0xfd];

/// One input of these fields.
pub(super) fn join<F: AsRef<[u8]>>(fields: impl IntoIterator<Item = F>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (n, field) in fields.into_iter().enumerate() {
        bytes.extend_from_slice(if n == 0 { &[] } else { &BETWEEN });
        bytes.extend_from_slice(field.as_ref());
    }
    bytes
}

/// The fields of an input: at least one.
pub(super) fn split(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut fields, mut from, mut at) = (Vec::new(), 0, 0);
    while at + BETWEEN.len() <= bytes.len() {
        if bytes[at..].starts_with(&BETWEEN) {
            fields.push(&bytes[from..at]);
            at += BETWEEN.len();
            from = at;
        } else {
            at += 1;
        }
    }
    fields.push(&bytes[from..]);
    fields
}

/// The text of a field.
pub(super) fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// The texts of fields as pairs; of an odd number, the last one is left out.
pub(super) fn pairs<'a>(fields: &'a [&[u8]]) -> impl Iterator<Item = (String, String)> + 'a {
    fields.chunks_exact(2).map(|pair| (text(pair[0]), text(pair[1])))
}

/// An instance as an input.
pub(super) fn of_instance(instance: &Instance) -> Vec<u8> {
    let attributes = instance.attributes.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
    join([instance.id.as_bytes()].into_iter().chain(attributes))
}

/// Most characters of a value in Cloud Map.
const MAX_VALUE: usize = 1_024;

/// The instance in an input. It has no attribute that Cloud Map does not take.
pub(super) fn instance(bytes: &[u8]) -> Instance {
    let fields = split(bytes);
    let attributes: Attributes = pairs(&fields[1..]).filter(|(_, value)| value.chars().count() <= MAX_VALUE).collect();
    Instance { id: text(fields[0]).into(), attributes }
}
