// A stock Go client at work: `go-client NAMESRV PREFIX QUEUES NAME...` runs the named scenarios side by side, each on a topic and a
// group of its own (PREFIX_NAME), and reports as JSON lines what was sent and what came, in the form of the Java program beside it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	// How long a scenario goes on listening after what it expects has come, to see what should not come.
	quiet    = 1500 * time.Millisecond
	patience = 60 * time.Second
)

var (
	out     sync.Mutex
	namesrv string
	prefix  string
	queues  int
)

func event(fields map[string]any) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(line))
}

type scenario struct {
	name, topic, group string
	mu                 sync.Mutex
	changed            *sync.Cond
	all                int
	closers            []func() error
	producer           rocketmq.Producer
}

func newScenario(name string) *scenario {
	s := &scenario{name: name, topic: prefix + "_" + name, group: prefix + "_g_" + name}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *scenario) fail(format string, args ...any) {
	event(map[string]any{"s": s.name, "e": "fail", "text": fmt.Sprintf(format, args...)})
}

func (s *scenario) must(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *scenario) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		if err := s.closers[i](); err != nil {
			s.fail("close: %v", err)
		}
	}
}

func (s *scenario) add(who string, m *primitive.MessageExt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all++
	e := map[string]any{"s": s.name, "e": "recv", "who": who, "topic": m.Topic, "offset": m.QueueOffset, "seq": seq(m), "msgId": m.MsgId,
		"tags": m.GetTags(), "keys": m.GetKeys(), "reconsume": m.ReconsumeTimes, "crc": crc(m.Body), "born": m.BornTimestamp,
		"at": time.Now().UnixMilli()}
	if m.Queue != nil {
		e["broker"] = m.Queue.BrokerName
		e["queue"] = m.Queue.QueueId
	}
	event(e)
	s.changed.Broadcast()
}

// await waits until n deliveries were seen in all.
func (s *scenario) await(n int) {
	timer := time.AfterFunc(patience, func() { s.changed.Broadcast() })
	defer timer.Stop()
	end := time.Now().Add(patience)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.all < n && time.Now().Before(end) {
		s.changed.Wait()
	}
	if s.all < n {
		event(map[string]any{"s": s.name, "e": "short", "want": n, "have": s.all})
	}
}

func seq(m *primitive.MessageExt) int {
	n, err := strconv.Atoi(m.GetProperty("seq"))
	if err != nil {
		return -1
	}
	return n
}

func crc(b []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(b)) }

func (s *scenario) message(n int, tag string) *primitive.Message {
	body := []byte(fmt.Sprintf("%s/%d/\u00e9\u6d88\u606f/", s.topic, n))
	length := 40 + n%300
	if n%10 == 7 {
		length = 9000 // long enough for the client to compress it
	}
	for x := uint64(n + 1); len(body) < length; {
		x = x*6364136223846793005 + 1442695040888963407
		body = append(body, 'a'+byte((x>>33)%26))
	}
	m := primitive.NewMessage(s.topic, body)
	if tag != "" {
		m.WithTag(tag)
	}
	m.WithKeys([]string{fmt.Sprintf("k%d", n)})
	m.WithProperty("seq", strconv.Itoa(n))
	return m
}

func (s *scenario) start(opts ...producer.Option) rocketmq.Producer {
	if s.producer != nil {
		return s.producer
	}
	opts = append([]producer.Option{producer.WithNameServer([]string{namesrv}), producer.WithGroupName(s.group + "_p"),
		producer.WithInstanceName(s.group + "_p"), producer.WithSendMsgTimeout(10 * time.Second)}, opts...)
	p, err := rocketmq.NewProducer(opts...)
	s.must(err)
	s.must(p.Start())
	s.producer = p
	s.closers = append(s.closers, p.Shutdown)
	return p
}

func (s *scenario) sent(how string, n int, m *primitive.Message, r *primitive.SendResult, offset int64) {
	event(map[string]any{"s": s.name, "e": "sent", "how": how, "topic": m.Topic, "broker": r.MessageQueue.BrokerName,
		"queue": r.MessageQueue.QueueId, "offset": offset, "seq": n, "msgId": r.MsgID, "offsetMsgId": r.OffsetMsgID,
		"status": map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[r.Status], "crc": crc(m.Body), "tags": m.GetTags(),
		"at": time.Now().UnixMilli()})
}

func (s *scenario) send(how string, n int, tag string) {
	m := s.message(n, tag)
	r, err := s.start().SendSync(context.Background(), m)
	if err != nil {
		s.fail("send %d: %v", n, err)
		return
	}
	s.sent(how, n, m, r, r.QueueOffset)
}

func (s *scenario) push(who, tags string, handle func(*primitive.MessageExt) consumer.ConsumeResult, opts ...consumer.Option) rocketmq.PushConsumer {
	opts = append([]consumer.Option{consumer.WithNameServer([]string{namesrv}), consumer.WithGroupName(s.group),
		consumer.WithInstance(s.group + "_" + who), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, opts...)
	c, err := rocketmq.NewPushConsumer(opts...)
	s.must(err)
	s.must(c.Subscribe(s.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags},
		func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			result := consumer.ConsumeSuccess
			for _, m := range msgs {
				s.add(who, m)
				if r := handle(m); r != consumer.ConsumeSuccess {
					result = r
				}
			}
			return result, nil
		}))
	// The topic may have been made a moment ago and be on its way to the name server.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if err = c.Start(); err == nil || time.Now().After(end) {
			break
		}
	}
	s.must(err)
	return c
}

// warm starts and stops a consumer, so that the group's retry topic exists: a client that starts before it learns of the topic only by
// its poll of the name server, each 30 s, and the first retry would come that much later.
func (s *scenario) warm() {
	s.must(s.push("c0", "*", ok).Shutdown())
}

func ok(*primitive.MessageExt) consumer.ConsumeResult { return consumer.ConsumeSuccess }

func main() {
	rlog.SetLogLevel("error")
	namesrv, prefix = os.Args[1], os.Args[2]
	queues, _ = strconv.Atoi(os.Args[3])
	all := map[string]func(*scenario){"send": send, "orderly": orderly, "broadcast": broadcast, "tags": tags, "retry": retry, "dead": dead,
		"delay": delay, "restart": restart, "poll": poll}
	var wait sync.WaitGroup
	for _, name := range os.Args[4:] {
		wait.Add(1)
		go func() {
			s := newScenario(name)
			defer wait.Done()
			defer event(map[string]any{"s": name, "e": "done"})
			defer s.close()
			defer func() {
				if r := recover(); r != nil {
					s.fail("%v", r)
				}
			}()
			all[name](s)
		}()
	}
	time.AfterFunc(150*time.Second, func() { os.Exit(3) })
	wait.Wait()
}
