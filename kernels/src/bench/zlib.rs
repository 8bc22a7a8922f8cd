//! The zlib of this system, where it has one: what other programs on it compress with.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_ulong};

use libloading::Library;

/// Its name for the dynamic linker.
const NAME: &str = "libz.so.1";

type Compress =
    unsafe extern "C" fn(*mut c_uchar, *mut c_ulong, *const c_uchar, c_ulong, c_int) -> c_int;
type Version = unsafe extern "C" fn() -> *const c_char;

/// A loaded zlib.
#[derive(Debug)]
pub struct SystemZlib {
    compress: Compress,
    version: String,
    /// Keeps the function where it is.
    _library: Library,
}

impl SystemZlib {
    /// `None` where the system has none.
    pub fn load() -> Option<Self> {
        // SAFETY: loading zlib runs nothing but what every program that is linked with it runs.
        let library = unsafe { Library::new(NAME) }.ok()?;
        // SAFETY: these are the types of zlib.h, which have stood since its first version.
        let (compress, version) = unsafe {
            (
                *library.get::<Compress>(b"compress2\0").ok()?,
                *library.get::<Version>(b"zlibVersion\0").ok()?,
            )
        };
        // SAFETY: the function takes nothing and returns a constant of the library, which ends in 0.
        let version = unsafe { CStr::from_ptr(version()) };
        let version = version.to_string_lossy().into_owned();
        Some(Self { compress, version, _library: library })
    }

    /// What it calls itself: `1.2.13`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Bytes of a zlib stream of `text`. `room` is memory that is used again.
    ///
    /// # Panics
    /// If the library fails although it has room.
    pub fn compressed_bytes(&self, text: &[u8], level: u32, room: &mut Vec<u8>) -> usize {
        // Twice the text and more is beyond the bound of any version.
        room.resize(2 * text.len() + 1024, 0);
        let mut bytes = room.len() as c_ulong;
        // SAFETY: both buffers are as long as said, and `bytes` is written before it returns.
        let code = unsafe {
            (self.compress)(
                room.as_mut_ptr(),
                &raw mut bytes,
                text.as_ptr(),
                text.len() as c_ulong,
                level as c_int,
            )
        };
        assert_eq!(code, 0, "zlib {} compresses {} bytes", self.version, text.len());
        bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(not(longsift_zlib), ignore = "needs libz.so.1")]
    fn what_repeats_becomes_short_and_what_does_not_stays() {
        let zlib = SystemZlib::load().expect("a system with zlib");
        let mut room = Vec::new();
        let of = |text: &[u8], room: &mut Vec<u8>| zlib.compressed_bytes(text, 6, room);
        assert!((8..20).contains(&of(b"", &mut room)));
        assert!(of(&[b'a'; 10_000], &mut room) < 60);
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..10_000).map(|_| byte()).collect();
        assert!((9000..10_100).contains(&of(&noise, &mut room)));
        assert!(zlib.version().starts_with("1."), "{}", zlib.version());
    }
}
