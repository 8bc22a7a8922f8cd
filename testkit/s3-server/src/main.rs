//! An S3 server over a folder, whose folders are the buckets; requests must be signed with the given secret.
//!
//!     s3-server FOLDER ACCESS_KEY SECRET_KEY
//!
//! It prints `127.0.0.1:PORT` and serves until it is killed.

use std::error::Error;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, access_key, secret_key] = &arguments[..] else {
        return Err("usage: s3-server FOLDER ACCESS_KEY SECRET_KEY".into());
    };
    let files = FileSystem::new(folder).map_err(|error| format!("{folder}: {error:?}"))?;
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(access_key.as_str(), secret_key.as_str()));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (connection, _) = listener.accept().await?;
        let service = service.clone();
        tokio::spawn(async move {
            let http = Builder::new(TokioExecutor::new());
            let _ = http.serve_connection(TokioIo::new(connection), service).await;
        });
    }
}
