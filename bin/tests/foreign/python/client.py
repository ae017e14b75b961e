"""The C++ client at work, by its Python wheel: `client.py NAMESRV PREFIX QUEUES NAME...` runs the named scenarios side by side, each on a
topic and a group of its own (PREFIX_NAME), and reports as JSON lines what was sent and what came, in the form of the Java program beside
it. The wheel tells of a sent message its id and offset, not its queue."""

import json
import os
import sys
import threading
import time
import zlib

from rocketmq.client import Message, MessageModel, Producer, PullConsumer, PushConsumer
from rocketmq.ffi import _CConsumeStatus, dll
from rocketmq.client import RecvMessage, ffi_check

QUIET_S = 1.5
PATIENCE_S = 60
OUT = threading.Lock()


def event(**fields):
    line = json.dumps(fields)
    with OUT:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def now_ms():
    return int(time.time() * 1000)


def crc(body):
    return "%08x" % zlib.crc32(body)


def patiently(send, *args):
    """A send as this client's users must do it. The client only *tries* the lock around its connections and its routes: while another of its
    own threads (the heartbeat, the route's refresh) opens a connection, a send fails three times within a millisecond, before a byte of it
    has left, with "No route info". Should a message have left after all, its second copy fails the test."""
    for _ in range(50):
        try:
            return send(*args)
        except Exception as e:  # each kind of send has an exception of its own
            if "No route info" not in str(e):
                raise
            time.sleep(0.1)
    return send(*args)


class Scenario:
    def __init__(self, namesrv, prefix, name):
        self.namesrv, self.name = namesrv, name
        self.topic, self.group = prefix + "_" + name, prefix + "_g_" + name
        self.changed = threading.Condition()
        self.all = 0
        self.closers = []
        self._producer = None

    def message(self, seq, tag=None):
        body = "%s/%d/\u00e9\u6d88\u606f/" % (self.topic, seq)
        # Some are long enough for the client to compress them.
        length = 9000 if seq % 10 == 7 else 40 + seq % 300
        x = seq + 1
        filler = []
        for _ in range(max(0, length - len(body))):
            x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            filler.append(chr(ord("a") + (x >> 33) % 26))
        body += "".join(filler)
        m = Message(self.topic)
        m.set_keys("k%d" % seq)
        if tag:
            m.set_tags(tag)
        m.set_property("seq", str(seq))
        m.set_body(body)
        return m, crc(body.encode())

    def producer(self):
        if self._producer is None:
            self._producer = Producer(self.group + "_p", timeout=10000)
            self._producer.set_namesrv_addr(self.namesrv)
            # Else all producers of the process would share one set of connections, and with it the lock that `patiently` tells of.
            ffi_check(dll.SetProducerInstanceName(self._producer._handle, (self.group + "_p").encode()))
            self._producer.start()
            self.closers.append(self._producer.shutdown)
        return self._producer

    def sent(self, how, seq, sum_, result, tag, offset=None):
        status = "SEND_OK" if result.status == 0 else str(result.status)
        event(s=self.name, e="sent", how=how, topic=self.topic, seq=seq, msgId=result.msg_id, crc=sum_, tags=tag, status=status, at=now_ms(),
              **({} if offset is None else {"offset": offset}))

    def send(self, how, seq, tag=None):
        m, sum_ = self.message(seq, tag)
        result = patiently(self.producer().send_sync, m)
        self.sent(how, seq, sum_, result, tag, result.offset)

    def add(self, who, m):
        text = lambda v: v.decode() if v else None
        with self.changed:
            self.all += 1
            event(s=self.name, e="recv", who=who, topic=m.topic, queue=m.queue_id, offset=m.queue_offset, seq=int(m["seq"] or -1), msgId=m.id,
                  tags=text(m.tags), keys=text(m.keys), reconsume=m.reconsume_times, crc=crc(m.body), born=m.born_timestamp, at=now_ms())
            self.changed.notify_all()

    def wait_for(self, n):
        with self.changed:
            if not self.changed.wait_for(lambda: self.all >= n, PATIENCE_S):
                event(s=self.name, e="short", want=n, have=self.all)

    def push(self, who, expression="*", orderly=False, model=MessageModel.CLUSTERING, judge=lambda m: True):
        c = PushConsumer(self.group, orderly=orderly, message_model=model)
        c.set_namesrv_addr(self.namesrv)
        c.set_instance_name(self.group + "_" + who)

        # The wheel's own subscribe answers a failure with success, so the status is returned here.
        def on_message(_consumer, handle):
            m = RecvMessage(handle)
            self.add(who, m)
            ok = judge(m)
            return (_CConsumeStatus.CONSUME_SUCCESS if ok else _CConsumeStatus.RECONSUME_LATER).value

        ffi_check(dll.Subscribe(c._handle, self.topic.encode(), expression.encode()))
        c._register_callback(on_message)
        c.start()
        self.closers.append(c.shutdown)
        return c

    def close(self):
        for closer in reversed(self.closers):
            closer()


def send(s):
    """20 sync, 20 async, 20 oneway, 40 to a queue chosen by key. No batches: this client sends one without the mark of a batch, so that a
    stock broker stores the encoded batch as one message."""
    s.push("c1")
    p = s.producer()
    for seq in range(20):
        s.send("sync", seq, "TagA")
    left = threading.Semaphore(0)
    for seq in range(20, 40):
        m, sum_ = s.message(seq, "TagB")

        def success(result, seq=seq, sum_=sum_):
            s.sent("async", seq, sum_, result, "TagB", result.offset)
            left.release()

        def failure(error, seq=seq):
            event(s=s.name, e="fail", text="async %d: %s" % (seq, error))
            left.release()

        p.send_async(m, success, failure)
    for _ in range(20):
        if not left.acquire(timeout=20):
            event(s=s.name, e="fail", text="an async send has no answer")
            break
    for seq in range(40, 60):
        m, sum_ = s.message(seq, "TagC")
        p.send_oneway(m)
        event(s=s.name, e="sent", how="oneway", topic=s.topic, seq=seq, crc=sum_, tags="TagC")
    for seq in range(60, 100):
        m, sum_ = s.message(seq, "TagE")
        result = patiently(p.send_orderly, m, seq % 4)
        s.sent("ordered", seq, sum_, result, "TagE", result.offset)
    s.wait_for(100)
    time.sleep(QUIET_S)


def orderly(s):
    s.push("c1", orderly=True)
    for seq in range(100):
        m, sum_ = s.message(seq, "TagA")
        result = patiently(s.producer().send_orderly, m, seq % 4)
        s.sent("ordered", seq, sum_, result, "TagA", result.offset)
    s.wait_for(100)
    time.sleep(QUIET_S)


def tags(s):
    s.push("c1", "TagA || TagC")
    for seq in range(60):
        s.send("sync", seq, ["TagA", "TagB", "TagC", None][seq % 4])
    s.wait_for(30)
    time.sleep(QUIET_S)


def retry(s):
    """The even ones fail once: they come again after 10 s."""
    s.push("c1", judge=lambda m: int(m["seq"]) % 2 == 1 or m.reconsume_times > 0)
    for seq in range(10):
        s.send("sync", seq, "TagA")
    s.wait_for(15)
    time.sleep(QUIET_S)


def delay(s):
    """Level 1 is a second, level 2 five."""
    s.push("c1")
    for seq in range(10):
        m, sum_ = s.message(seq, "TagA")
        m.set_delay_time_level(1 + seq % 2)
        s.sent("delay", seq, sum_, patiently(s.producer().send_sync, m), "TagA")
    s.wait_for(10)
    time.sleep(QUIET_S)


def pull(s):
    for seq in range(40):
        s.send("sync", seq, "TagA")
    c = PullConsumer(s.group)
    # The wheel keeps its offsets by topic and queue number alone, which mixes up the queues of two brokers.
    c._get_mq_key = lambda mq: "%s@%s@%s" % (mq.topic, mq.brokerName, mq.queueId)
    c.set_namesrv_addr(s.namesrv)
    c.start()
    s.closers.append(c.shutdown)
    # A stock broker acknowledges a message before it can be pulled; the consumer goes on from where the last round ended.
    end = time.time() + PATIENCE_S
    while s.all < 40 and time.time() < end:
        for m in c.pull(s.topic):
            s.add("c1", m)


def main():
    namesrv, prefix = sys.argv[1:3]
    every = {"send": send, "orderly": orderly, "tags": tags, "retry": retry, "delay": delay, "pull": pull}

    def run(name):
        s = Scenario(namesrv, prefix, name)
        try:
            every[name](s)
            s.close()
        except Exception as e:  # whatever it is, the test shall read it
            event(s=name, e="fail", text=repr(e))
        event(s=name, e="done")

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in sys.argv[4:]]
    for t in threads:
        t.start()
    for t in threads:
        t.join(150)
    sys.stdout.flush()
    # The native client has threads of its own that do not like an interpreter that goes away.
    os._exit(0)


main()
