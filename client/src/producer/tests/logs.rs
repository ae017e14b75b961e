//! What is told to `tracing`.

use std::io::Write;

use tracing_subscriber::fmt::MakeWriter;

use super::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}

#[tokio::test]
async fn failed_sends_are_told_with_topic_and_id_and_never_with_a_body() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(lines.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let a = broker(|_| refusal(response::SYSTEM_BUSY)).await;
    let (_servers, client) = cluster(vec![("a", a.addr())]).await;
    let producer = client.producer("g").start().await.unwrap();
    let error = producer.send(Message::new("t", "a secret")).await.unwrap_err();
    assert!(!error.to_string().contains("a secret") && !format!("{error:?}").contains("a secret"));
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let Error::Send(failure) = error else { panic!("{error}") };
    assert!(text.contains("a try failed") && text.contains(&failure.message_id), "{text}");
    assert!(!text.contains("a secret"), "{text}");
}
