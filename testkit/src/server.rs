//! HTTP server on 127.0.0.1 with a handler from the test, which records its requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Header fields, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body of `Content-Length` bytes; empty without it.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns first byte and end of the requested range of a file of `length` bytes.
    pub fn range_of(&self, length: usize) -> Option<(usize, usize)> {
        let (start, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        if start.is_empty() {
            return Some((length.saturating_sub(last.parse().ok()?), length));
        }
        let end = if last.is_empty() { length } else { last.parse::<usize>().ok()? + 1 };
        Some((start.parse().ok()?, end))
    }

    /// Returns first byte and end of the requested range.
    pub fn range(&self) -> Option<(usize, usize)> {
        self.range_of(usize::MAX)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    /// Header fields in addition to the length.
    pub headers: Vec<(String, String)>,
    /// Complete body; a reply to `HEAD` has only its length.
    pub body: Vec<u8>,
    /// Number of bytes of the body after which the connection is closed.
    pub cut: Option<usize>,
    /// Whether the connection is closed without an answer.
    pub reset: bool,
    /// Delay before the answer.
    pub delay: Duration,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Adds a header field.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns a file, or its requested range.
    pub fn file(bytes: &[u8], request: &Request) -> Self {
        let Some((start, end)) = request.range_of(bytes.len()) else { return Self::whole(bytes) };
        if start >= bytes.len() {
            return Self::status(416);
        }
        let end = end.min(bytes.len());
        let range = format!("bytes {start}-{}/{}", end - 1, bytes.len());
        let partial = Self { status: 206, body: bytes[start..end].to_vec(), ..Self::default() };
        partial.with_header("Content-Range", &range)
    }

    /// Returns a file regardless of the request.
    pub fn whole(bytes: &[u8]) -> Self {
        Self { status: 200, body: bytes.to_vec(), ..Self::default() }
    }

    pub fn redirect(location: &str) -> Self {
        Self::status(302).with_header("Location", location)
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// Server that runs until it is dropped.
pub struct Server {
    address: SocketAddr,
    recorded: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a server on its own port; connections are served concurrently.
    pub fn new(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&recorded));
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(connection) = connection else { continue };
                if connection.peer_addr().is_err() {
                    continue;
                }
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                // A client may disconnect before its answer.
                thread::spawn(move || serve(&connection, &*handler, &log));
            }
        });
        Self { address, recorded }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests since the last call.
    pub fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.recorded.lock().unwrap())
    }
}

fn serve(connection: &TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) -> Option<()> {
    let mut reader = BufReader::new(connection);
    while let Some(request) = read_request(&mut reader) {
        let reply = handler(&request);
        let only_the_head = request.method == "HEAD";
        log.lock().unwrap().push(request);
        thread::sleep(reply.delay);
        if reply.reset {
            connection.shutdown(Shutdown::Both).ok()?;
            return None;
        }
        let mut head = format!("HTTP/1.1 {} x\r\n", reply.status);
        let _ = write!(head, "Content-Length: {}\r\n", reply.body.len());
        for (name, value) in &reply.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head += "\r\n";
        let body = if only_the_head { &[][..] } else { &reply.body };
        let sent = reply.cut.unwrap_or(body.len()).min(body.len());
        // Written in one piece: a body that waits for the acknowledgement of the head is 40 ms late.
        let mut writer = connection;
        writer.write_all(&[head.as_bytes(), &body[..sent]].concat()).ok()?;
        if sent < body.len() {
            connection.shutdown(Shutdown::Both).ok()?;
            return None;
        }
    }
    Some(())
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.take(65_536).read_line(&mut line).ok()?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.take(65_536).read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, headers, body })
}
