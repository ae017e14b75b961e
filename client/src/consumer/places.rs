//! How many listener calls may run at once, which may change while they do.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for calls. A call holds its permit until it has really ended.
pub(crate) struct Places {
    permits: Arc<Semaphore>,
    count: Mutex<usize>,
}

impl Places {
    pub(crate) fn new(count: usize) -> Places {
        Places { permits: Arc::new(Semaphore::new(count)), count: Mutex::new(count) }
    }

    /// How many there are, or will be when enough calls have ended.
    pub(crate) fn count(&self) -> usize {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, once one is free; they are given in the order of asking.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    /// Makes more, or fewer: then what is free goes at once, and the rest as it becomes free, before anybody else gets it. What
    /// this gives, if anything, has to be run for that.
    #[must_use]
    pub(crate) fn set(&self, count: usize) -> Option<impl Future<Output = ()> + Send + use<>> {
        let mut now = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *now, count);
        if count >= before {
            self.permits.add_permits(count - before);
            return None;
        }
        let taken = before - count - self.permits.forget_permits(before - count);
        let taken = u32::try_from(taken).ok().filter(|taken| *taken > 0)?;
        let permits = self.permits.clone();
        Some(async move {
            if let Ok(places) = permits.acquire_many_owned(taken).await {
                places.forget();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_in_use_go_as_they_become_free_and_before_others_get_them() {
        let places = Arc::new(Places::new(3));
        let held = [places.take().await, places.take().await, places.take().await];
        let fewer = tokio::spawn(places.set(1).expect("places in use"));
        tokio::task::yield_now().await;
        let next = tokio::spawn({
            let places = places.clone();
            async move { places.take().await }
        });
        let [first, second, third] = held;
        drop((first, second));
        fewer.await.unwrap();
        tokio::task::yield_now().await;
        assert!(!next.is_finished() && places.count() == 1);
        drop(third);
        let next = next.await.unwrap();
        assert!(next.is_some() && places.permits.available_permits() == 0);
        // More, and fewer of those that are free.
        assert!(places.set(4).is_none() && places.permits.available_permits() == 3);
        assert!(places.set(2).is_none() && places.permits.available_permits() == 1);
    }

    #[tokio::test]
    async fn raised_again_while_places_are_to_go_the_sum_is_right() {
        let places = Places::new(4);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(places.take().await);
        }
        let fewer = tokio::spawn(places.set(1).expect("places in use"));
        tokio::task::yield_now().await;
        assert!(places.set(3).is_none());
        held.clear();
        fewer.await.unwrap();
        assert_eq!((places.permits.available_permits(), places.count()), (3, 3));
    }
}
