//! A document sent to a web server over TLS, once.

use std::time::Duration;

use super::http::answers::in_full;

/// Posts `body`, JSON, to `url`, with `key` as its bearer. Certificates are those that the system trusts.
///
/// # Errors
/// Why nobody has taken it, for a log: no answer within `timeout`, or one that is no success.
pub(crate) fn post(
    url: &str,
    key: Option<&str>,
    body: String,
    timeout: Duration,
) -> Result<(), String> {
    // Another part of the program may have chosen the same provider before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let client = reqwest::Client::builder().timeout(timeout).build();
    let client = client.map_err(|error| in_full(&error))?;
    let mut request = client.post(url).header("Content-Type", "application/json").body(body);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let answer = runtime.block_on(request.send()).map_err(|error| in_full(&error))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("the answer is {status}")),
    }
}
