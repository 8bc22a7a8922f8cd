//! Tables that are read at random positions.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// Zeroed values in huge pages, where the system has them: with pages of 4 KiB, nearly every access would wait for the
/// address of its page. Memory is taken when a page is first written.
#[derive(Debug)]
pub(super) struct RandomTable<T>(MmapMut, PhantomData<T>);

impl<T: Pod> RandomTable<T> {
    pub(super) fn zeroed(length: usize) -> Self {
        let layout = Layout::array::<T>(length).expect("a table has less than 2^63 bytes");
        // Not a panic, which would be blamed on the text.
        let Ok(map) = MmapMut::map_anon(layout.size()) else { handle_alloc_error(layout) };
        // A system without huge pages refuses the advice.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Self(map, PhantomData)
    }
}

impl<T: Pod> Deref for RandomTable<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }
}

impl<T: Pod> DerefMut for RandomTable<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}
