//! Parallel loops with results that do not depend on scheduling.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::Result;

/// Locks a mutex, also after a thread has panicked with its lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` for every index below `count`, starting in ascending order, on at most `threads` threads; with one thread, on
/// the caller's. Returns the results in order.
///
/// # Errors
/// The error of the lowest index that fails. After a failure no further index is started.
pub fn in_order<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if threads <= 1 || count <= 1 {
        return (0..count).map(work).collect();
    }
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let done = Mutex::new(Vec::with_capacity(count));
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = work(index);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.lock().expect("no worker panics with the lock").push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(worker);
        }
    });
    let mut done = done.into_inner().expect("no worker panics with the lock");
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Like [`in_order`], for results that do not fit into memory together: computes them in small groups and calls `take` for each
/// in order.
pub fn each_in_order<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
    mut take: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let together = 4 * threads.max(1);
    for first in (0..count).step_by(together) {
        let some = together.min(count - first);
        in_order(some, threads, |index| work(first + index))?
            .into_iter()
            .try_for_each(&mut take)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::{Arc, OnceLock};

    use super::*;
    use crate::base::diagnostic::{Blame, Diagnostic};

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let squares = in_order(100, threads, |index| Ok(index * index)).unwrap();
            assert!(squares.iter().enumerate().all(|(index, &square)| square == index * index));
        }
        assert_eq!(in_order(0, 4, Ok).unwrap(), Vec::<usize>::new());
        for (count, threads) in [(0, 4), (100, 1), (100, 7), (28, 7)] {
            let mut taken = Vec::new();
            let take = |index| {
                taken.push(index);
                Ok(())
            };
            each_in_order(count, threads, Ok, take).unwrap();
            assert!(taken.into_iter().eq(0..count));
        }
    }

    thread_local! {
        /// Dropped when the thread ends.
        static AT_END: RefCell<Option<SetAtEnd>> = const { RefCell::new(None) };
    }

    struct SetAtEnd(Arc<OnceLock<()>>);

    impl Drop for SetAtEnd {
        fn drop(&mut self) {
            self.0.get_or_init(|| ());
        }
    }

    #[test]
    fn the_first_failure_is_reported_and_nothing_begins_after_it() {
        for threads in [1, 4] {
            let (begun, ended) = (AtomicUsize::new(0), Arc::new(OnceLock::new()));
            let work = |index: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                assert!(AT_END.with_borrow(Option::is_none), "{index} after a failure");
                if index == 4 {
                    AT_END.set(Some(SetAtEnd(ended.clone())));
                }
                // With several threads, the second failure occurs first and is known before other work ends.
                if threads > 1 && (index == 3 || index > 4) {
                    ended.wait();
                }
                if index == 3 || index == 4 {
                    return Err(Diagnostic::error(Blame::Bug, index.to_string()).into());
                }
                Ok(())
            };
            let failure = in_order(10_000, threads, work).unwrap_err();
            assert_eq!(failure.to_string(), "3");
            let begun = begun.into_inner();
            assert!(begun <= 3 + threads, "{begun} with {threads} threads");
        }
    }
}
