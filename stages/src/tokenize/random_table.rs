//! Tables that are read at random positions.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// Zeroed values in huge pages, where the system has them: with pages of 4 KiB, nearly every access would wait for the
/// address of its page. Memory is taken when a page is first written.
#[derive(Debug)]
pub(super) enum RandomTable<T> {
    Mapped(MmapMut),
    Allocated(Box<[T]>),
}

impl<T: Pod> RandomTable<T> {
    pub(super) fn zeroed(length: usize) -> Self {
        match MmapMut::map_anon((length * size_of::<T>()).max(1)) {
            Ok(map) => {
                // A system without huge pages refuses the advice.
                #[cfg(target_os = "linux")]
                let _ = map.advise(memmap2::Advice::HugePage);
                Self::Mapped(map)
            }
            Err(_) => Self::Allocated(vec![T::zeroed(); length].into()),
        }
    }
}

impl<T: Pod> Deref for RandomTable<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::Mapped(map) => bytemuck::cast_slice(map),
            Self::Allocated(values) => values,
        }
    }
}

impl<T: Pod> DerefMut for RandomTable<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Mapped(map) => bytemuck::cast_slice_mut(map),
            Self::Allocated(values) => values,
        }
    }
}
