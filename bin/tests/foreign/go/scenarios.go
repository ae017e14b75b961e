package main

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// bySeq sends a message that asks for it (sharding key) to a queue that depends on the key, all others in turn.
type bySeq struct {
	mu   sync.Mutex
	next int
}

func (b *bySeq) Select(m *primitive.Message, qs []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	sorted := append([]*primitive.MessageQueue(nil), qs...)
	sort.Slice(sorted, func(i, j int) bool {
		if sorted[i].BrokerName != sorted[j].BrokerName {
			return sorted[i].BrokerName < sorted[j].BrokerName
		}
		return sorted[i].QueueId < sorted[j].QueueId
	})
	if key := m.GetShardingKey(); key != "" {
		n, _ := strconv.Atoi(key)
		return sorted[n%len(sorted)]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return sorted[b.next%len(sorted)]
}

// 20 sync, 20 async, 20 oneway, 3 batches of 10, 40 by a queue selector.
func send(s *scenario) {
	c := s.push("c1", "*", ok)
	s.closers = append(s.closers, c.Shutdown)
	p := s.start(producer.WithQueueSelector(&bySeq{}))
	for n := 0; n < 20; n++ {
		s.send("sync", n, "TagA")
	}
	var async sync.WaitGroup
	for n := 20; n < 40; n++ {
		async.Add(1)
		m := s.message(n, "TagB")
		err := p.SendAsync(context.Background(), func(_ context.Context, r *primitive.SendResult, err error) {
			defer async.Done()
			if err != nil {
				s.fail("async %d: %v", n, err)
				return
			}
			s.sent("async", n, m, r, r.QueueOffset)
		}, m)
		s.must(err)
	}
	async.Wait()
	for n := 40; n < 60; n++ {
		m := s.message(n, "TagC")
		s.must(p.SendOneWay(context.Background(), m))
		event(map[string]any{"s": s.name, "e": "sent", "how": "oneway", "topic": m.Topic, "seq": n, "crc": crc(m.Body), "tags": m.GetTags()})
	}
	for first := 60; first < 90; first += 10 {
		var batch []*primitive.Message
		for n := first; n < first+10; n++ {
			batch = append(batch, s.message(n, "TagD"))
		}
		r, err := p.SendSync(context.Background(), batch...)
		s.must(err)
		ids := strings.Split(r.OffsetMsgID, ",")
		for i, m := range batch {
			one := *r
			one.OffsetMsgID = ids[i]
			s.sent("batch", first+i, m, &one, r.QueueOffset+int64(i))
		}
	}
	for n := 90; n < 130; n++ {
		m := s.message(n, "TagE")
		m.WithShardingKey(strconv.Itoa(n % 4))
		r, err := p.SendSync(context.Background(), m)
		s.must(err)
		s.sent("ordered", n, m, r, r.QueueOffset)
	}
	s.await(130)
	time.Sleep(quiet)
}

func orderly(s *scenario) {
	c := s.push("c1", "*", ok, consumer.WithConsumerOrder(true))
	s.closers = append(s.closers, c.Shutdown)
	p := s.start(producer.WithQueueSelector(&bySeq{}))
	for n := 0; n < 100; n++ {
		m := s.message(n, "TagA")
		m.WithShardingKey(strconv.Itoa(n % 4))
		r, err := p.SendSync(context.Background(), m)
		s.must(err)
		s.sent("ordered", n, m, r, r.QueueOffset)
	}
	s.await(100)
	time.Sleep(quiet)
}

// A broadcasting group begins where its local file says, else at the first offset: told so by push.
func broadcast(s *scenario) {
	for _, who := range []string{"c1", "c2"} {
		c := s.push(who, "*", ok, consumer.WithConsumerModel(consumer.BroadCasting))
		s.closers = append(s.closers, c.Shutdown)
	}
	for n := 0; n < 40; n++ {
		s.send("sync", n, "TagA")
	}
	s.await(80)
	time.Sleep(quiet)
}

func tags(s *scenario) {
	c := s.push("c1", "TagA || TagC", ok)
	s.closers = append(s.closers, c.Shutdown)
	for n := 0; n < 60; n++ {
		s.send("sync", n, []string{"TagA", "TagB", "TagC", ""}[n%4])
	}
	s.await(30)
	time.Sleep(quiet)
}

// The even ones fail once: they come again after 10 s.
func retry(s *scenario) {
	s.warm()
	c := s.push("c1", "*", func(m *primitive.MessageExt) consumer.ConsumeResult {
		if seq(m)%2 == 0 && m.ReconsumeTimes == 0 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	s.closers = append(s.closers, c.Shutdown)
	for n := 0; n < 10; n++ {
		s.send("sync", n, "TagA")
	}
	s.await(15)
	time.Sleep(quiet)
}

// Two attempts are allowed and both fail; then the message is in the group's dead letter topic.
func dead(s *scenario) {
	s.warm()
	c := s.push("c1", "*", func(*primitive.MessageExt) consumer.ConsumeResult { return consumer.ConsumeRetryLater },
		consumer.WithMaxReconsumeTimes(1))
	s.closers = append(s.closers, c.Shutdown)
	for n := 0; n < 4; n++ {
		s.send("sync", n, "TagA")
	}
	s.await(8)
	topic := s.topic
	defer func() { s.topic = topic }()
	s.topic, s.group = "%DLQ%"+s.group, s.group+"_dead"
	d := s.push("dead", "*", ok)
	s.closers = append(s.closers, d.Shutdown)
	s.await(12)
	time.Sleep(quiet)
}

// Level 1 is a second, level 2 five.
func delay(s *scenario) {
	c := s.push("c1", "*", ok)
	s.closers = append(s.closers, c.Shutdown)
	p := s.start()
	for n := 0; n < 10; n++ {
		m := s.message(n, "TagA")
		m.WithDelayTimeLevel(1 + n%2)
		r, err := p.SendSync(context.Background(), m)
		s.must(err)
		s.sent("delay", n, m, r, r.QueueOffset)
	}
	s.await(10)
	time.Sleep(quiet)
}

// Consumes 30, leaves, misses 30, comes back under another client id and gets these.
func restart(s *scenario) {
	one := s.push("c1", "*", ok)
	for n := 0; n < 30; n++ {
		s.send("sync", n, "TagA")
	}
	s.await(30)
	// What was handed out becomes the group's offset a moment after the handler returned.
	time.Sleep(quiet)
	s.must(one.Shutdown())
	for n := 30; n < 60; n++ {
		s.send("sync", n, "TagA")
	}
	two := s.push("c2", "*", ok)
	s.closers = append(s.closers, two.Shutdown)
	s.await(60)
	time.Sleep(quiet)
}

// The pull consumer that polls and acknowledges.
func poll(s *scenario) {
	for n := 0; n < 40; n++ {
		s.send("sync", n, "TagA")
	}
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer([]string{namesrv}), consumer.WithGroupName(s.group),
		consumer.WithInstance(s.group+"_c1"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	s.must(err)
	s.must(c.Subscribe(s.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	s.must(c.Start())
	s.closers = append(s.closers, c.Shutdown)
	end := time.Now().Add(patience)
	for have := 0; time.Now().Before(end); {
		request, err := c.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			if have >= 40 {
				return
			}
			continue
		}
		if err != nil {
			panic(fmt.Errorf("poll: %w", err))
		}
		for _, m := range request.GetMsgList() {
			s.add("c1", m)
			have++
		}
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
}
