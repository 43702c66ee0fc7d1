//! The answer of Prometheus to an instant query.

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Answer {
    /// `bad_data`, `execution`, `timeout` and others. Its text may have more, and the user can ask Prometheus for it.
    #[serde(default, rename = "errorType")]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: Value,
}

/// The one value of an answer.
///
/// # Errors
/// It has none, or several, or is no answer of Prometheus. The text is for the user.
pub(super) fn value(body: &[u8]) -> Result<f64, String> {
    let answer: Answer = serde_json::from_slice(body).map_err(|_| "this is no answer of Prometheus".to_owned())?;
    let Some(Data { kind, result }) = answer.data else {
        let why = if answer.error == "bad_data" { "it cannot read the query" } else { "it could not answer the query" };
        return Err(why.to_owned());
    };
    // A sample is a time and a value.
    let sample = match (kind.as_str(), result.as_array()) {
        ("scalar", Some(_)) => &result,
        ("vector", Some(samples)) => match samples.as_slice() {
            [] => return Err("the query has no value".to_owned()),
            [one] => &one["value"],
            more => return Err(format!("the query has {} values: let it aggregate them, as sum() does", more.len())),
        },
        _ => return Err(format!("the query has a {kind} instead of a value")),
    };
    let number = sample[1].as_str().and_then(|text| text.parse::<f64>().ok());
    let number = number.ok_or_else(|| "this is no answer of Prometheus".to_owned())?;
    if number.is_nan() { Err("the query has no value (NaN)".to_owned()) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_value_is_an_answer_and_everything_else_says_what_is_wrong() {
        let sample = |value: &str| json!({"metric": {"job": "web"}, "value": [1_764_000_000.123, value]});
        let vector = |samples: &[&str]| {
            let result: Vec<_> = samples.iter().map(|value| sample(value)).collect();
            json!({"status": "success", "data": {"resultType": "vector", "result": result}})
        };
        let of = |answer: Value| value(answer.to_string().as_bytes());
        assert_eq!(of(vector(&["0.25"])), Ok(0.25));
        assert_eq!(of(json!({"status": "success", "data": {"resultType": "scalar", "result": [1, "3"]}})), Ok(3.0));
        assert_eq!(of(vector(&["+Inf"])), Ok(f64::INFINITY));
        for (answer, said) in [
            (vector(&[]), "no value"),
            (vector(&["NaN"]), "NaN"),
            (vector(&["1", "2"]), "2 values"),
            (vector(&["x"]), "no answer of Prometheus"),
            (json!({"status": "success", "data": {"resultType": "matrix", "result": []}}), "matrix"),
            (
                json!({"status": "error", "errorType": "bad_data", "error": "parse error at char 5"}),
                "cannot read the query",
            ),
            (json!([]), "no answer of Prometheus"),
        ] {
            let error = of(answer.clone()).unwrap_err();
            assert!(error.contains(said), "{answer}: {error}");
        }
    }
}
