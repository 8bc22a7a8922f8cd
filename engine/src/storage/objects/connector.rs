//! What carries the requests of a store's client, and listens to what its errors leave out: when a server asks to be
//! asked again.

use std::cell::Cell;
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

use crate::storage::retry::retry_after;

tokio::task_local! {
    /// What the last answer of this attempt said in `Retry-After`.
    static RETRY_AFTER: Cell<Option<Duration>>;
}

/// An attempt's answer, and after which time the server asks for the next one.
pub(super) async fn listening<T>(attempt: impl Future<Output = T>) -> (T, Option<Duration>) {
    let heard = async { (attempt.await, RETRY_AFTER.with(Cell::get)) };
    RETRY_AFTER.scope(Cell::new(None), heard).await
}

/// Makes clients that listen.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Listening(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Listening(HttpClient);

#[async_trait]
impl HttpService for Listening {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await?;
        let text = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let asked = retry_after(text);
        // Credentials are asked for outside of attempts, too.
        let _ = RETRY_AFTER.try_with(|heard| heard.set(asked));
        Ok(answer)
    }
}
