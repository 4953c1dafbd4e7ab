package sdk

import (
	"fmt"
	"slices"
	"time"

	"github.com/edgemq/edgemq/broker/topic"
)

// MaxBody is the largest body of a message.
const MaxBody = 256 << 10

// The headers with a meaning. Topic and Queue say where a message goes; the rest are filled in on the way if
// the sender has not set them.
const (
	HeaderTopic          = "Topic"
	HeaderQueue          = "Queue"
	HeaderMessageID      = "MessageId"      // by the producer, unless set
	HeaderBornTimestamp  = "BornTimestamp"  // by the producer: int64, ms since 1970
	HeaderBornHost       = "BornHost"       // by the producer
	HeaderProducer       = "Producer"       // by the producer: its client id
	HeaderEpoch          = "Epoch"          // by a producer WithEpoch: int64
	HeaderStoreTimestamp = "StoreTimestamp" // by the broker, on queues and replays: int64, ms since 1970
	HeaderOffset         = "Offset"         // by the broker, on queues and replays: int64
	HeaderRefused        = "Refused"        // by the broker, on a message that comes again: int64, how often it was refused
	HeaderTimeout        = "Timeout"        // int64 or int32, ms until the message expires; 0 is never
	HeaderOriginTopic    = "OriginTopic"    // of a dead letter: where it was published to,
	HeaderOriginQueue    = "OriginQueue"    // which queue gave it up,
	HeaderOriginOffset   = "OriginOffset"   // its place in the log before: int64,
	HeaderRedelivered    = "Redelivered"    // how often it was refused: int64,
	HeaderReason         = "Reason"         // and why
	HeaderSearchKey      = "SearchKey"
	HeaderShardingKey    = "ShardingKey" // messages of one key stay in order and go to one consumer
	HeaderTraceID        = "TraceId"
)

// Message is what is sent and received: a destination, headers, properties of the application, a body.
type Message struct {
	headers, properties Values
	body                []byte

	// ContentType, ResponseTopic and CorrelationData are MQTT 5's.
	ContentType     string
	ResponseTopic   string
	CorrelationData []byte
	// Delay holds the message back at the broker, for whole seconds (rounded up); it survives restarts.
	Delay time.Duration
	// Retain makes the broker keep the message for later subscribers of its topic.
	Retain bool
}

// NewMessage makes a message to a topic. Nothing is sent; an invalid topic is Send's error. The body is not copied until it is sent.
func NewMessage(topic string, body []byte) *Message {
	return (&Message{body: body}).PutHeader(HeaderTopic, String(topic))
}

// NewQueueMessage makes a message to a queue. Nobody but the queue's consumers ever sees it.
func NewQueueMessage(queue string, body []byte) *Message {
	return (&Message{body: body}).PutHeader(HeaderQueue, String(queue))
}

// PutHeader inserts or replaces a header and returns the message.
func (m *Message) PutHeader(name string, v Value) *Message {
	m.headers.put(name, v)
	return m
}

// PutProperty inserts or replaces a property and returns the message.
func (m *Message) PutProperty(name string, v Value) *Message {
	m.properties.put(name, v)
	return m
}

// Header returns a header, the zero Value if there is none.
func (m *Message) Header(name string) Value { return m.headers.Get(name) }

// Property returns a property, the zero Value if there is none.
func (m *Message) Property(name string) Value { return m.properties.Get(name) }

// Headers returns all headers. They are not to be changed.
func (m *Message) Headers() Values { return m.headers }

// Properties returns all properties, nil if none was ever put. They are not to be changed.
func (m *Message) Properties() Values { return m.properties }

// Body returns the body. It is the message's own.
func (m *Message) Body() []byte { return m.body }

// Topic is the topic the message is (or was) sent to, "" if it goes to a queue.
func (m *Message) Topic() string { return m.headers.Get(HeaderTopic).text }

// Queue is the queue the message is (or was) sent to, "" if it goes to a topic.
func (m *Message) Queue() string { return m.headers.Get(HeaderQueue).text }

// MessageID is the message's id: the sender's, or one made while sending.
func (m *Message) MessageID() string { return m.headers.Get(HeaderMessageID).text }

// Producer is the client id of the producer, "" if it is not known.
func (m *Message) Producer() string { return m.headers.Get(HeaderProducer).text }

// BornTime is when the message was sent, by the producer's clock; zero if it is not known.
func (m *Message) BornTime() time.Time { return m.time(HeaderBornTimestamp) }

// StoreTime is when the broker stored the message, by its clock; zero outside of queues and replays.
func (m *Message) StoreTime() time.Time { return m.time(HeaderStoreTimestamp) }

func (m *Message) time(name string) time.Time {
	ms, err := m.headers.Get(name).Int64()
	if err != nil || ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Clone returns a deep copy.
func (m *Message) Clone() *Message {
	c := *m
	c.headers, c.properties = slices.Clone(m.headers), slices.Clone(m.properties)
	c.body, c.CorrelationData = slices.Clone(m.body), slices.Clone(m.CorrelationData)
	return &c
}

// target is where a message goes.
type target struct {
	name  string
	queue bool
}

// target checks all that can be checked without the network, except the name.
func (m *Message) target() (target, error) {
	if m == nil {
		return target{}, ErrNoMessage
	}
	to, queue := m.headers.Get(HeaderTopic), m.headers.Get(HeaderQueue)
	hasTopic, hasQueue := to.kind != KindNone, queue.kind != KindNone
	switch {
	case hasTopic == hasQueue, hasTopic && to.kind != KindString, hasQueue && queue.kind != KindString:
		return target{}, ErrDestination
	case len(m.body) > MaxBody:
		return target{}, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(m.body), MaxBody)
	}
	return target{to.text + queue.text, hasQueue}, nil
}

// wire returns the topic to publish to. It refuses what the broker would refuse by closing the connection.
func (t target) wire() (string, error) {
	if t.queue {
		if !topic.ValidQueue(t.name) {
			return "", fmt.Errorf("%w: queue name %q", ErrDestination, t.name)
		}
		return topic.QueuePrefix + t.name, nil
	}
	if n, err := topic.ParseName([]byte(t.name), topic.Limits{}); err != nil {
		return "", fmt.Errorf("%w: %w", ErrDestination, err)
	} else if n.Kind != topic.Plain || topic.Own(t.name) {
		return "", fmt.Errorf("%w: topic %q (for queues there is NewQueueMessage)", ErrDestination, t.name)
	}
	return t.name, nil
}
