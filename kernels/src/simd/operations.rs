//! Operations that are an intrinsic, or a few.

/// Implements the methods of a trait for a type that can only be created in code compiled for their intrinsics.
macro_rules! operations {
    (
        $(load: $load:ident -> $vector:ty, store: $store:ident;)?
        $($(#[$doc:meta])* fn $name:ident($self:ident $(, $argument:ident: $type:ty)*) $(-> $result:ty)? { $($body:tt)* })*
    ) => {
        $(#[inline(always)]
        fn load(self, from: &[f32]) -> $vector {
            let from = &from[..Self::LANES];
            // SAFETY: the slice is as long as the vector, and `self` proves that the processor has the instruction.
            unsafe { $load(from.as_ptr()) }
        }
        #[inline(always)]
        fn store(self, vector: $vector, to: &mut [f32]) {
            let to = &mut to[..Self::LANES];
            // SAFETY: the slice is as long as the vector, and `self` proves that the processor has the instruction.
            unsafe { $store(to.as_mut_ptr(), vector) }
        })?
        $($(#[$doc])* #[inline(always)]
        #[allow(unused_unsafe, reason = "some operations are plain Rust, and newer compilers call most intrinsics safe")]
        fn $name($self $(, $argument: $type)*) $(-> $result)? {
            // SAFETY: `self` proves that the processor has the instructions; memory is read and written through slices as long as
            // the vector.
            unsafe { $($body)* }
        })*
    };
}

pub(crate) use operations;
