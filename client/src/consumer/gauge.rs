//! Counting what is under way, and waiting until nothing is.

use std::sync::Arc;

use tokio::sync::watch;

/// How much is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge {
    count: Arc<watch::Sender<usize>>,
}

/// One thing under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    count: Arc<watch::Sender<usize>>,
}

impl Gauge {
    pub(crate) fn enter(&self) -> UnderWay {
        self.count.send_modify(|count| *count += 1);
        UnderWay { count: self.count.clone() }
    }

    /// Done when nothing is under way.
    pub(crate) async fn idle(&self) {
        // The sender is our own, so that it cannot be gone.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_is_when_the_last_one_is_dropped() {
        let gauge = Gauge::default();
        gauge.idle().await;
        let (one, two) = (gauge.enter(), gauge.enter());
        let waiting = tokio::spawn({
            let gauge = gauge.clone();
            async move { gauge.idle().await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        waiting.await.unwrap();
    }
}
