package sdk

// ConsumerOption configures a PullConsumer or a PushConsumer.
type ConsumerOption func(*consumerSettings)

type consumerSettings struct {
	shared bool
	manual bool
	buffer BufferOptions
	push   pushSettings
}

// WithShared lets other consumers of the queue work beside this one: each message goes to one of them, those of
// one ShardingKey (else of one producer) to the same. Without it a queue has one consumer at a time, and the
// second to attach gets ErrInUse.
func WithShared() ConsumerOption { return func(s *consumerSettings) { s.shared = true } }

// WithManualAck leaves acknowledging to the application: Delivery.Ack. Without it a message is acknowledged when
// the next one is polled.
func WithManualAck() ConsumerOption { return func(s *consumerSettings) { s.manual = true } }

// WithBuffer sets the watermarks, in messages and bytes, of what waits to be polled: at the high ones nothing
// more is asked of the broker until it is down to the low ones. The broker's window (1024 messages and 8 MiB
// unless it is configured) is the capacity; those of o are not used. The default is 800 and 400 messages, 6 and 3 MiB.
func WithBuffer(o BufferOptions) ConsumerOption {
	return func(s *consumerSettings) {
		o.Capacity, o.CapacityBytes = 0, 0
		s.buffer = o
	}
}
