//! Map as an image: one square of equal size for each pair of blocks.
//!
//! The PNG is written here with the engine's deflate and checksum, because the crate `png` would add two versions of
//! another deflate.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::Map;
use crate::report::page::heat::ColourScale;

/// Minimum width of the image in pixels.
const MIN_SIDE: usize = 768;
/// Colour of blocks that are not visible.
const INVISIBLE: [u8; 3] = [255, 255, 255];

impl Map {
    /// Renders the shares of attention as a PNG in the colours of the page, with query blocks from top to bottom.
    pub(crate) fn png(&self) -> Vec<u8> {
        let blocks = self.blocks.len();
        let each = MIN_SIDE.div_ceil(blocks);
        let scale =
            ColourScale::shares(self.matrix.block_attention.iter().flatten().flatten().copied());
        let side = blocks * each;
        let mut pixels = Vec::with_capacity(side * (3 * side + 1));
        for (shares, seen) in self.matrix.block_attention.iter().zip(&self.matrix.lift) {
            let cells = shares.iter().zip(seen).map(|(share, lift)| match (share, lift) {
                (Some(share), Some(_)) => scale.rgb(*share),
                _ => INVISIBLE,
            });
            let line: Vec<u8> = cells.flat_map(|colour| [colour].repeat(each)).flatten().collect();
            for _ in 0..each {
                pixels.push(0); // no filter
                pixels.extend_from_slice(&line);
            }
        }
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        let size = u32::try_from(side).expect("the number of blocks bounds the side").to_be_bytes();
        // Eight bits for each of three colours, no interlacing.
        chunk(&mut file, *b"IHDR", &[&size[..], &size, &[8, 2, 0, 0, 0]].concat());
        chunk(&mut file, *b"tEXt", b"Software\0longsift");
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        let packed = encoder.write_all(&pixels).and_then(|()| encoder.finish());
        chunk(&mut file, *b"IDAT", &packed.expect("writing to memory does not fail"));
        chunk(&mut file, *b"IEND", &[]);
        file
    }
}

fn chunk(file: &mut Vec<u8>, name: [u8; 4], content: &[u8]) {
    let length = u32::try_from(content.len()).expect("the image has a few megabytes");
    file.extend_from_slice(&length.to_be_bytes());
    let start = file.len();
    file.extend_from_slice(&name);
    file.extend_from_slice(content);
    let check = crc32fast::hash(&file[start..]);
    file.extend_from_slice(&check.to_be_bytes());
}
