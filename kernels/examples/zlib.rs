//! Recurrence compared with this system's zlib, on one core, in turns over windows of the same text.
//!
//! `cargo run --release -p longsift-kernels --example zlib -- TEXT_FILE [WINDOW_TOKENS [ROUNDS]]`
//!
//! Tokens are words, numbered by first appearance: recurrence needs ids alone. Rates are bytes of text per second.
#![expect(clippy::print_stdout, reason = "the program prints a table")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_ulong};
use std::hint::black_box;

use libloading::Library;
use longsift_kernels::bench::Clock;
use longsift_kernels::recurrence::{RecurrenceCounts, RecurrenceScan};

/// Name of zlib for the dynamic linker, and the level that compression ratios are measured with.
const NAME: &str = "libz.so.1";
const LEVEL: c_int = 6;

type Compress =
    unsafe extern "C" fn(*mut c_uchar, *mut c_ulong, *const c_uchar, c_ulong, c_int) -> c_int;
type Version = unsafe extern "C" fn() -> *const c_char;

struct SystemZlib {
    compress: Compress,
    version: String,
    /// Keeps the function loaded.
    _library: Library,
}

impl SystemZlib {
    fn load() -> Result<Self, String> {
        let failed = |error: libloading::Error| format!("{NAME}: {error}");
        // SAFETY: loading zlib runs only the start-up code that every program linked with it runs.
        let library = unsafe { Library::new(NAME) }.map_err(failed)?;
        // SAFETY: these are the types of zlib.h, unchanged since its first version.
        let (compress, version) = unsafe {
            (
                *library.get::<Compress>(b"compress2\0").map_err(failed)?,
                *library.get::<Version>(b"zlibVersion\0").map_err(failed)?,
            )
        };
        // SAFETY: the function takes nothing and returns a constant of the library that ends in 0.
        let version = unsafe { CStr::from_ptr(version()) };
        let version = version.to_string_lossy().into_owned();
        Ok(Self { compress, version, _library: library })
    }

    /// Returns the length of a zlib stream of `text`.
    fn compressed_bytes(&self, text: &[u8], buffer: &mut Vec<u8>) -> Result<usize, String> {
        // More than twice the text exceeds the bound of any version.
        buffer.resize(2 * text.len() + 1024, 0);
        let mut bytes = buffer.len() as c_ulong;
        // SAFETY: both buffers have the given lengths, and `bytes` is written before the call returns.
        let code = unsafe {
            (self.compress)(
                buffer.as_mut_ptr(),
                &raw mut bytes,
                text.as_ptr(),
                text.len() as c_ulong,
                LEVEL,
            )
        };
        if code == 0 { Ok(bytes as usize) } else { Err(format!("zlib failed with code {code}")) }
    }
}

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("expected the path of a text file")?;
    let mut numbers = [4096, 20];
    for (number, argument) in numbers.iter_mut().zip(arguments) {
        *number = argument.parse().map_err(|_| format!("`{argument}` is not a number"))?;
    }
    let [window, rounds] = numbers;
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let zlib = SystemZlib::load()?;
    let words: Vec<&str> = text.split_inclusive(char::is_whitespace).collect();
    let mut known: HashMap<&str, u32> = HashMap::new();
    let ids: Vec<u32> = words
        .iter()
        .map(|word| {
            let next = known.len() as u32;
            *known.entry(word).or_insert(next)
        })
        .collect();
    let windows: Vec<(&[u32], String)> =
        ids.chunks(window).zip(words.chunks(window).map(<[&str]>::concat)).collect();
    let (mut scan, mut buffer) = (RecurrenceScan::default(), Vec::new());
    let (mut recurrence, mut compression, mut compressed) = (0.0, 0.0, 0);
    for _ in 0..rounds.max(1) {
        let clock = Clock::start();
        for (ids, _) in &windows {
            black_box(RecurrenceCounts::new(ids, window as u64 / 4, &mut scan));
        }
        recurrence += clock.seconds();
        let clock = Clock::start();
        compressed = 0;
        for (_, text) in &windows {
            compressed += zlib.compressed_bytes(text.as_bytes(), &mut buffer)?;
        }
        compression += clock.seconds();
    }
    let rate = |seconds: f64| (text.len() * rounds.max(1)) as f64 / seconds / 1e6;
    println!(
        "{} windows of {window} words, {} bytes, {compressed} compressed",
        windows.len(),
        text.len()
    );
    println!("recurrence            {:9.1} MB/s", rate(recurrence));
    println!("zlib {:10}, level {LEVEL} {:9.1} MB/s", zlib.version, rate(compression));
    Ok(())
}
