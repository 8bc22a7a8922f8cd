//! Operations that are an intrinsic, or a few.

/// Implements [`Simd`](super::Simd) with intrinsics, for a type that can only be created in code compiled for them.
macro_rules! operations {
    (
        load: $load:ident -> $vector:ty, store: $store:ident;
        $($(#[$doc:meta])* fn $name:ident($self:ident $(, $argument:ident: $type:ty)*) -> $result:ty { $($body:tt)* })*
    ) => {
        #[inline(always)]
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
        }
        $($(#[$doc])* #[inline(always)]
        fn $name($self $(, $argument: $type)*) -> $result {
            // SAFETY: `self` proves that the processor has the instructions.
            unsafe { $($body)* }
        })*
    };
}

pub(super) use operations;
