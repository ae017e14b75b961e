//! Every metric: its name, kind, meaning, and where in a scrape it is. `docs/metrics.md` says what to do about each; a test holds the
//! two together.

use ringmq_net::server::CloseReason;

use super::Stage;
use super::family::{Family, Kind, Labels, with_shard};

/// The value of the label `topic` for topics without series of their own. No topic can be called so: brackets are illegal
/// in a name.
const OTHER_TOPICS: &str = "(other)";

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

fn name_of(topic: &Option<String>) -> &str {
    topic.as_deref().unwrap_or(OTHER_TOPICS)
}

/// All of them, in the order in which they are scraped.
pub static CATALOG: &[Family] = &[
    // ---- the process ----
    process!(
        gauge,
        "ringmq_build_info",
        "Always 1; the version and level are labels.",
        |scene, out| {
            let labels = [("version", env!("CARGO_PKG_VERSION")), ("level", scene.process.level)];
            out.gauge(&labels, 1.0)?
        }
    ),
    process!(
        gauge,
        "ringmq_shard_up",
        "1 if the shard serves and its reactor answered this scrape.",
        |scene, out| {
            for shard in &scene.shards {
                out.gauge(&with_shard(shard, &[]), flag(shard.numbers.is_some()))?;
            }
        }
    ),
    process!(
        gauge,
        "ringmq_namesrv_up",
        "1 if the name server of this process listens.",
        |scene, out| {
            if let Some(namesrv) = &scene.process.namesrv {
                out.gauge(&[], flag(namesrv.stage() == Stage::Serving))?;
            }
        }
    ),
    process!(
        counter,
        "ringmq_log_lines_dropped_total",
        "Log lines lost because their reader was slower.",
        |scene, out| { out.counter(&[], scene.process.dropped.count())? }
    ),
    process!(
        gauge,
        "process_start_time_seconds",
        "When the process started, seconds since 1970.",
        |scene, out| { out.gauge(&[], scene.process.started)? }
    ),
    process!(
        seconds,
        "process_cpu_seconds_total",
        "User and system time of the process.",
        |scene, out| { out.seconds(&[], scene.usage.cpu_seconds)? }
    ),
    process!(gauge, "process_resident_memory_bytes", "Memory of the process.", |scene, out| {
        out.gauge(&[], scene.usage.resident_bytes as f64)?
    }),
    process!(gauge, "process_open_fds", "Open descriptors.", |scene, out| {
        out.gauge(&[], scene.usage.open_fds as f64)?
    }),
    process!(gauge, "process_max_fds", "Descriptors that may be open.", |scene, out| {
        out.gauge(&[], scene.usage.max_fds as f64)?
    }),
    process!(gauge, "process_threads", "Threads.", |scene, out| {
        out.gauge(&[], scene.usage.threads as f64)?
    }),
    // ---- reactors ----
    process!(
        counter,
        "ringmq_reactor_turns_total",
        "Heartbeats of the reactor, 20 a second.",
        |scene, out| {
            for reactor in &scene.reactors {
                out.counter(&scene.seat(reactor.index, &[]), reactor.turns)?;
            }
        }
    ),
    process!(
        gauge,
        "ringmq_reactor_silent_seconds",
        "Time since the reactor's last heartbeat was seen.",
        |scene, out| {
            for reactor in &scene.reactors {
                out.gauge(&scene.seat(reactor.index, &[]), reactor.silent.as_secs_f64())?;
            }
        }
    ),
    process!(
        seconds,
        "ringmq_reactor_late_seconds_total",
        "How much later than due heartbeats ran, all together.",
        |scene, out| {
            for reactor in &scene.reactors {
                out.seconds(&scene.seat(reactor.index, &[]), reactor.late.as_secs_f64())?;
            }
        }
    ),
    process!(
        gauge,
        "ringmq_reactor_late_max_seconds",
        "The most that a heartbeat was late since the start.",
        |scene, out| {
            for reactor in &scene.reactors {
                out.gauge(&scene.seat(reactor.index, &[]), reactor.late_max.as_secs_f64())?;
            }
        }
    ),
    process!(
        counter,
        "ringmq_stalls_total",
        "Times that a reactor did not turn for reactor.stall_ms, by what it was doing; `no processor` if others had it.",
        |scene, out| {
            for ((index, cause), stall) in &scene.stalls {
                out.counter(&scene.seat(*index, &[("cause", *cause)]), stall.count)?;
            }
        }
    ),
    process!(
        seconds,
        "ringmq_stalled_seconds_total",
        "How long those stalls lasted, when they were over.",
        |scene, out| {
            for ((index, cause), stall) in &scene.stalls {
                let seconds = stall.total.as_secs_f64();
                out.seconds(&scene.seat(*index, &[("cause", *cause)]), seconds)?;
            }
        }
    ),
    process!(
        gauge,
        "ringmq_stall_longest_seconds",
        "The longest of them since the start.",
        |scene, out| {
            for ((index, cause), stall) in &scene.stalls {
                let seconds = stall.longest.as_secs_f64();
                out.gauge(&scene.seat(*index, &[("cause", *cause)]), seconds)?;
            }
        }
    ),
    // ---- messages ----
    each!(counter, "ringmq_messages_in_total", "Messages stored, by topic.", |numbers, put| {
        for topic in &numbers.topics {
            put(&[("topic", name_of(&topic.topic))], topic.messages_in)?;
        }
    }),
    each!(counter, "ringmq_bytes_in_total", "Bytes of them as stored.", |numbers, put| {
        for topic in &numbers.topics {
            put(&[("topic", name_of(&topic.topic))], topic.bytes_in)?;
        }
    }),
    each!(
        counter,
        "ringmq_messages_out_total",
        "Messages handed to consumers, by topic.",
        |numbers, put| {
            for topic in &numbers.topics {
                put(&[("topic", name_of(&topic.topic))], topic.messages_out)?;
            }
        }
    ),
    each!(counter, "ringmq_bytes_out_total", "Bytes of them as stored.", |numbers, put| {
        for topic in &numbers.topics {
            put(&[("topic", name_of(&topic.topic))], topic.bytes_out)?;
        }
    }),
    one!(gauge, "ringmq_topics", "Topics that exist.", |numbers| numbers.topics_known as f64),
    // ---- sends ----
    each!(
        counter,
        "ringmq_send_answers_total",
        "Answers to stored sends, by the level that was reached and the response code.",
        |numbers, put| {
            for (level, code, count) in &numbers.send_answers {
                put(&[("level", level), ("code", &code.to_string())], *count)?;
            }
        }
    ),
    one!(
        histogram,
        "ringmq_send_seconds",
        "From the receive to the answer of sends and send-backs that waited for their level.",
        |numbers| &numbers.send_times
    ),
    one!(
        counter,
        "ringmq_slow_sends_total",
        "Sends that took longer than log.slow_send_ms.",
        |numbers| numbers.slow_sends
    ),
    one!(gauge, "ringmq_waiting_sends", "Sends that wait for their level.", |numbers| numbers
        .waiting_sends
        as f64),
    // ---- pulls ----
    each!(
        counter,
        "ringmq_pulls_total",
        "Pulls that were answered, by whether they found messages.",
        |numbers, put| {
            put(&[("result", "found")], numbers.pulls_found)?;
            put(&[("result", "empty")], numbers.pulls_empty)?
        }
    ),
    one!(
        histogram,
        "ringmq_cold_pull_seconds",
        "Reads of pulls that memory did not serve.",
        |numbers| &numbers.cold_pull_times
    ),
    one!(gauge, "ringmq_waiting_pulls", "Pulls that wait for a message.", |numbers| numbers
        .waiting_pulls
        as f64),
    // ---- requests and refusals ----
    each!(counter, "ringmq_requests_total", "Requests, by request code.", |numbers, put| {
        for (code, count) in &numbers.requests {
            put(&[("code", &code.to_string())], *count)?;
        }
        put(&[("code", "other")], numbers.requests_other)?
    }),
    each!(
        counter,
        "ringmq_request_failures_total",
        "Requests that were not answered with success, by response code.",
        |numbers, put| {
            for (code, count) in &numbers.refusals {
                put(&[("code", &code.to_string())], *count)?;
            }
        }
    ),
    each!(
        counter,
        "ringmq_refused_total",
        "What was refused for the broker's own sake, by reason.",
        |numbers, put| {
            for (reason, count) in &numbers.refused {
                put(&[("reason", reason)], *count)?;
            }
        }
    ),
    one!(
        gauge,
        "ringmq_slow_requests",
        "Requests that wait for the device or for many queues.",
        |numbers| numbers.slow_requests as f64
    ),
    // ---- the log ----
    one!(histogram, "ringmq_log_write_seconds", "Direct writes of the log.", |numbers| &numbers
        .log_times
        .writes),
    one!(
        histogram,
        "ringmq_log_flush_seconds",
        "Flushes of the device's cache for the log.",
        |numbers| &numbers.log_times.flushes
    ),
    one!(
        counter,
        "ringmq_log_written_bytes_total",
        "Bytes of the log's writes, padding included.",
        |numbers| numbers.log_written_bytes
    ),
    one!(gauge, "ringmq_log_unwritten_bytes", "Bytes appended and not yet written.", |numbers| {
        numbers.unwritten_bytes as f64
    }),
    one!(gauge, "ringmq_log_unflushed_bytes", "Bytes written and not yet flushed.", |numbers| {
        numbers.unflushed_bytes as f64
    }),
    each!(
        gauge,
        "ringmq_log_frontier_bytes",
        "Zeroed bytes ready ahead of the log's end.",
        |numbers, put| {
            if let Some(bytes) = numbers.frontier_bytes {
                put(&[], bytes as f64)?;
            }
        }
    ),
    one!(
        gauge,
        "ringmq_log_min_offset_bytes",
        "Physical offset of the log's first byte.",
        |numbers| numbers.log_min_offset as f64
    ),
    one!(
        gauge,
        "ringmq_log_max_offset_bytes",
        "Physical offset behind the last visible message.",
        |numbers| numbers.log_max_offset as f64
    ),
    one!(
        gauge,
        "ringmq_dispatch_behind_bytes",
        "Visible bytes that are not yet in consume queues and index.",
        |numbers| numbers.dispatch_behind_bytes as f64
    ),
    one!(
        gauge,
        "ringmq_log_segments",
        "Files of the log, those prepared ahead included.",
        |numbers| numbers.segments as f64
    ),
    one!(
        gauge,
        "ringmq_log_failed",
        "1 after a failed write or flush: the shard takes no messages any more.",
        |numbers| flag(numbers.log_failed)
    ),
    // ---- the disk ----
    each!(
        gauge,
        "ringmq_disk_used_ratio",
        "Used part of the disk, 0 to 1, looked at each 10 s.",
        |numbers, put| {
            if let Some((free, total)) = numbers.disk {
                put(&[], 1.0 - free as f64 / total.max(1) as f64)?;
            }
        }
    ),
    each!(gauge, "ringmq_disk_free_bytes", "Free bytes of the disk.", |numbers, put| {
        if let Some((free, _)) = numbers.disk {
            put(&[], free as f64)?;
        }
    }),
    one!(
        gauge,
        "ringmq_disk_full",
        "1 while messages are refused because the disk is too full.",
        |numbers| flag(numbers.disk_full)
    ),
    // ---- memory ----
    one!(gauge, "ringmq_hot_bytes", "Memory of the log's recent blocks.", |numbers| numbers
        .hot_bytes
        as f64),
    one!(gauge, "ringmq_cache_bytes", "Memory of blocks that were read back.", |numbers| numbers
        .cache_bytes
        as f64),
    each!(gauge, "ringmq_memory_budget_bytes", "What may be used, by purpose.", |numbers, put| {
        put(&[("purpose", "hot")], numbers.block_budget_bytes as f64)?;
        put(&[("purpose", "cache")], numbers.cache_budget_bytes as f64)?;
        put(&[("purpose", "unwritten")], numbers.unwritten_budget_bytes as f64)?
    }),
    one!(
        counter,
        "ringmq_cache_hits_total",
        "Look-ups of read-back blocks that memory served.",
        |numbers| numbers.cache_hits
    ),
    one!(
        counter,
        "ringmq_cache_misses_total",
        "Look-ups of read-back blocks that went to the device.",
        |numbers| numbers.cache_misses
    ),
    // ---- clients ----
    one!(gauge, "ringmq_connections", "Open client connections.", |numbers| numbers
        .connections
        .server
        .connections
        as f64),
    one!(
        counter,
        "ringmq_connections_accepted_total",
        "Connections accepted, refused ones included.",
        |numbers| numbers.connections.server.accepted
    ),
    one!(
        counter,
        "ringmq_connections_refused_total",
        "Connections closed at once because limits.connections were open.",
        |numbers| numbers.connections.server.refused
    ),
    one!(
        counter,
        "ringmq_accept_errors_total",
        "Accepts that failed, most often for want of descriptors.",
        |numbers| numbers.connections.server.accept_errors
    ),
    each!(
        counter,
        "ringmq_connections_closed_total",
        "Connections that ended, by reason.",
        |numbers, put| {
            for reason in CloseReason::ALL {
                put(&[("reason", reason.name())], numbers.connections.server.closed_for(reason))?;
            }
        }
    ),
    one!(counter, "ringmq_received_bytes_total", "Bytes received from clients.", |numbers| numbers
        .connections
        .server
        .bytes_in),
    one!(counter, "ringmq_sent_bytes_total", "Bytes sent to clients.", |numbers| numbers
        .connections
        .server
        .bytes_out),
    one!(counter, "ringmq_receive_calls_total", "Receives that brought bytes.", |numbers| numbers
        .connections
        .server
        .recv_calls),
    one!(counter, "ringmq_send_calls_total", "System calls that sent replies.", |numbers| numbers
        .connections
        .server
        .send_calls),
    one!(
        counter,
        "ringmq_gathers_total",
        "Times that all connections whose requests are gathered were looked at.",
        |numbers| numbers.connections.server.gathers
    ),
    one!(
        counter,
        "ringmq_read_pauses_total",
        "Times that a connection was not read because it takes no replies.",
        |numbers| numbers.connections.server.read_pauses
    ),
    one!(gauge, "ringmq_consumer_groups", "Consumer groups with a client.", |numbers| numbers
        .connections
        .consumer_groups
        as f64),
    one!(gauge, "ringmq_producer_groups", "Producer groups with a client.", |numbers| numbers
        .connections
        .producer_groups
        as f64),
    each!(
        gauge,
        "ringmq_namesrv_registered",
        "1 if the shard is registered at this name server.",
        |numbers, put| {
            for (address, registered) in &numbers.namesrvs {
                put(&[("namesrv", address)], flag(*registered))?;
            }
        }
    ),
    // ---- lag ----
    each!(
        gauge,
        "ringmq_consumer_lag_messages",
        "Messages that a consumer group has not committed, by topic.",
        |numbers, put| {
            for lag in &numbers.lags {
                put(&[("group", &lag.group), ("topic", &lag.topic)], lag.messages as f64)?;
            }
        }
    ),
    each!(
        gauge,
        "ringmq_consumer_lag_seconds",
        "Age of the oldest of them; 0 if there is none.",
        |numbers, put| {
            for lag in &numbers.lags {
                let oldest_ms =
                    if lag.messages == 0 { Some(numbers.now_ms) } else { lag.oldest_ms };
                if let Some(oldest_ms) = oldest_ms {
                    let seconds = (numbers.now_ms - oldest_ms).max(0) as f64 / 1e3;
                    put(&[("group", &lag.group), ("topic", &lag.topic)], seconds)?;
                }
            }
        }
    ),
    one!(
        gauge,
        "ringmq_consumer_lag_left_out",
        "Pairs of group and topic beyond metrics.groups_max.",
        |numbers| numbers.lags_left_out as f64
    ),
    each!(
        gauge,
        "ringmq_delay_backlog_messages",
        "Messages that wait on a delay level.",
        |numbers, put| {
            for delay in &numbers.delays {
                put(&[("level", &delay.level.to_string())], delay.messages as f64)?;
            }
        }
    ),
    // ---- replication ----
    one!(gauge, "ringmq_ha_slaves", "Slaves that are connected and get the log.", |numbers| {
        numbers.slaves.iter().filter(|slave| slave.streaming).count() as f64
    }),
    one!(
        gauge,
        "ringmq_ha_slaves_refused",
        "Slaves that are connected and get nothing: they have not reported yet, or their log does not fit.",
        |numbers| numbers.slaves.iter().filter(|slave| !slave.streaming).count() as f64
    ),
    one!(
        gauge,
        "ringmq_ha_slaves_same_id",
        "Slaves that are connected under the id of another one, which counts in their place.",
        |numbers| numbers.slaves.iter().filter(|slave| slave.second).count() as f64
    ),
    one!(
        gauge,
        "ringmq_ha_replicated_offset_bytes",
        "Physical offset up to which ha.in_sync_replicas slaves hold the log.",
        |numbers| numbers.replicated_offset as f64
    ),
    each!(
        gauge,
        "ringmq_ha_slave_lag_bytes",
        "Bytes of the log that a slave has not reported to hold.",
        |numbers, put| {
            for slave in &numbers.slaves {
                put(&[("slave", &slave.addr)], slave.lag_bytes as f64)?;
            }
        }
    ),
    each!(
        gauge,
        "ringmq_ha_slave_lag_seconds",
        "How long a slave has not held the whole log; 0 while it does.",
        |numbers, put| {
            for slave in &numbers.slaves {
                put(&[("slave", &slave.addr)], slave.lag_seconds)?;
            }
        }
    ),
    each!(
        gauge,
        "ringmq_ha_following",
        "1 while this slave's log agrees with its master's.",
        |numbers, put| {
            if let Some(follower) = &numbers.follower {
                put(&[], flag(follower.following))?;
            }
        }
    ),
    each!(
        gauge,
        "ringmq_ha_behind_bytes",
        "Bytes of its master's log that this slave has heard of and does not have.",
        |numbers, put| {
            if let Some(follower) = &numbers.follower {
                put(&[], follower.lag_bytes as f64)?;
            }
        }
    ),
    each!(
        counter,
        "ringmq_ha_received_bytes_total",
        "Bytes of the log that this slave has received.",
        |numbers, put| {
            if let Some(follower) = &numbers.follower {
                put(&[], follower.received_bytes)?;
            }
        }
    ),
    // ---- the start ----
    one!(
        gauge,
        "ringmq_open_seconds",
        "How long opening the store took at the start.",
        |numbers| numbers.open_seconds
    ),
    one!(
        gauge,
        "ringmq_open_scanned_bytes",
        "Bytes of the log that were read for it.",
        |numbers| numbers.scanned_bytes as f64
    ),
    one!(gauge, "ringmq_open_unclean", "1 if the store had not been closed in order.", |numbers| {
        flag(numbers.unclean)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut names: Vec<&str> = CATALOG.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CATALOG.len(), "a name is there twice");
        for family in CATALOG {
            let name = family.name;
            assert!(name.starts_with("ringmq_") || name.starts_with("process_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert_eq!(family.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            if family.kind == Kind::Histogram {
                assert!(name.ends_with("_seconds"), "{name}");
            }
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
        }
    }
}
