//! Requests of the name server: which code goes where, and what connections mean for the table.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use ringmq_net::code::{request, response};
use ringmq_net::header::HeaderView;
use ringmq_net::server::{Conn, Service};

use super::NamesrvConfig;
use super::answer::{Answer, Reply, ReturnPath};
use super::kv::KvTable;
use super::saver::Saver;
use super::table::RouteTable;

/// The name server's state on its reactor.
pub struct NameService {
    pub(super) config: NamesrvConfig,
    pub(super) table: RefCell<RouteTable>,
    pub(super) kv: RefCell<KvTable>,
    /// Routes carry `orderTopicConf`.
    pub(super) order_enabled: Cell<bool>,
    saver: Rc<Saver>,
    started: Instant,
}

impl NameService {
    /// With what was loaded from the data directory.
    pub(super) fn new(
        config: NamesrvConfig,
        table: RouteTable,
        kv: KvTable,
        order_enabled: bool,
        saver: Rc<Saver>,
    ) -> NameService {
        NameService {
            config,
            table: RefCell::new(table),
            kv: RefCell::new(kv),
            order_enabled: Cell::new(order_enabled),
            saver,
            started: Instant::now(),
        }
    }

    /// Monotonic milliseconds; all of the table's times are of this clock.
    pub(super) fn now_ms(&self) -> i64 {
        self.started.elapsed().as_millis() as i64
    }

    fn answer(
        &self,
        conn: &Rc<Conn>,
        header: &HeaderView<'_>,
        body: &[u8],
    ) -> Result<Reply, Answer> {
        match header.code() {
            request::REGISTER_BROKER => self.register_broker(conn.id(), header, body),
            request::UNREGISTER_BROKER => self.unregister_broker(header),
            request::QUERY_DATA_VERSION => self.query_data_version(header, body),
            request::WIPE_WRITE_PERM_OF_BROKER => self.wipe_write_perm(header),
            request::ADD_WRITE_PERM_OF_BROKER => self.add_write_perm(header),
            request::GET_ROUTEINFO_BY_TOPIC => self.route(header),
            request::GET_BROKER_CLUSTER_INFO => Ok(self.cluster_info().into()),
            request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => Ok(self.all_topics().into()),
            request::GET_TOPICS_BY_CLUSTER => self.topics_by_cluster(header),
            request::GET_SYSTEM_TOPIC_LIST_FROM_NS => Ok(self.system_topics().into()),
            code @ (request::GET_UNIT_TOPIC_LIST
            | request::GET_HAS_UNIT_SUB_TOPIC_LIST
            | request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) => Ok(self.unit_topics(code).into()),
            request::DELETE_TOPIC_IN_NAMESRV => self.delete_topic(header),
            request::PUT_KV_CONFIG => self.put_kv(header),
            request::GET_KV_CONFIG => self.get_kv(header),
            request::DELETE_KV_CONFIG => self.delete_kv(header),
            request::GET_KVLIST_BY_NAMESPACE => self.kv_namespace(header),
            request::UPDATE_NAMESRV_CONFIG => self.update_config(body),
            request::GET_NAMESRV_CONFIG => Ok(self.config_text().into()),
            // Stock 4.9.8 sends nothing here and lets the caller time out; 5.x and brokers answer.
            code => Err(Answer::error(
                response::REQUEST_CODE_NOT_SUPPORTED,
                format!(" request type {code} not supported"),
            )),
        }
    }
}

impl Service for NameService {
    fn on_frame(&self, conn: &Rc<Conn>, header: &HeaderView<'_>, body: &[u8]) {
        if header.is_response() {
            // The name server asks nobody anything.
            return;
        }
        let path = ReturnPath::of(conn, header);
        match self.answer(conn, header, body) {
            Ok(Reply::Now(answer)) | Err(answer) => path.send(&answer),
            Ok(Reply::Saved { name, content, answer }) => {
                let done = move |outcome: Result<(), String>| match outcome {
                    Ok(()) => path.send(&answer),
                    Err(error) => path.send(&Answer::error(
                        response::SYSTEM_ERROR,
                        format!("in force, but lost at the next restart: {error}"),
                    )),
                };
                self.saver.save(name, content, Box::new(done));
            }
        }
    }

    fn on_close(&self, conn: &Rc<Conn>) {
        for addr in self.table.borrow_mut().connection_closed(conn.id()) {
            tracing::info!(broker = addr, peer = %conn.peer(), "a broker's connection closed: removed");
        }
    }
}
