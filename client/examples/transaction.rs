//! A transaction: a message that becomes visible when the local part committed. Brokers ask what became of one whose end they were not told, so the answer
//! must come from what all producers of the group share; here a table in memory stands for a database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ringmq_client::{Client, Message, ReceivedMessage, TransactionState};

type Ledger = Arc<Mutex<HashMap<String, TransactionState>>>;

fn outcome(ledger: &Ledger, message: &ReceivedMessage) -> TransactionState {
    let ledger = ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Not there: the local part has not ended, or this program has no part in it.
    ledger.get(&message.message_id()).copied().unwrap_or(TransactionState::Unknown)
}

#[tokio::main]
async fn main() -> ringmq_client::Result<()> {
    let ledger = Ledger::default();
    let client = Client::builder().build()?;
    let asked = ledger.clone();
    let producer = client
        .producer("payers")
        // Known to these topics' brokers from the start, for what an earlier run left open.
        .topics(["payments"])
        .transactional(move |message| {
            let state = outcome(&asked, &message);
            async move { state }
        })
        .start()
        .await?;

    for (amount, covered) in [(100, true), (1_000_000, false)] {
        let message = Message::new("payments", format!("pay {amount}"));
        let done = producer.send(message, |half| {
            let ledger = ledger.clone();
            async move {
                let state = match covered {
                    true => TransactionState::Commit,
                    false => TransactionState::Rollback,
                };
                let mut ledger = ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                ledger.insert(half.message_id, state);
                state
            }
        });
        let receipt = done.await?;
        println!("pay {amount}: {:?} as {}", receipt.state, receipt.send.message_id);
    }
    client.shutdown().await
}
