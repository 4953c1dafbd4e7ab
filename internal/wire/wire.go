// Package wire holds the names that both ends of a connection know: the broker and the SDK.
package wire

// User properties with a meaning to edgemq. Others belong to the application.
const (
	MessageID      = "@MessageId"      // set by the producer; deduplicates
	Epoch          = "@Epoch"          // of a producer: publishes of a lower one are refused
	BornTimestamp  = "@BornTimestamp"  // ms since 1970, by the producer's clock
	BornHost       = "@BornHost"       // the producer's address
	Producer       = "@Producer"       // the publisher's client id
	Offset         = "@Offset"         // the record's place in the log
	StoreTimestamp = "@StoreTimestamp" // ms since 1970, by the broker's clock
	ShardingKey    = "@ShardingKey"    // messages with the same key stay in order and go to one consumer
	SearchKey      = "@SearchKey"
	Refused        = "@Refused"      // of a delivery: how often consumers of the queue refused it before, if they did
	Redelivered    = "@Redelivered"  // of a dead letter: how often it was refused
	Topic          = "@Topic"        // of a dead letter: the topic it was published to
	Queue          = "@Queue"        // of a dead letter: the queue that gave it up
	OriginOffset   = "@OriginOffset" // of a dead letter: its place in the log before
	Reason         = "@Reason"       // why it was refused
	Delay          = "@Delay"        // of a refusal: seconds until it comes again
	TraceID        = "@TraceId"
	Types          = "@types" // which values are not strings
)

// Claims is where clients claim what one of them may have at a time, by an exclusive subscription: a queue at Claims + "queue/<name>". Whoever may
// attach to the queue may claim it, and nobody else; nobody publishes there.
const (
	Claims      = "edgemq/claims/"
	ClaimsQueue = Claims + "queue/"
)

// Ends of topics below $queue/<name>.
const (
	CaughtUp = "/$caught-up" // from the broker: the backlog as of attaching has all been sent
	Gap      = "/$gap"       // from the broker: messages were dropped, from one offset to below another, and how many
	Nack     = "/$nack"      // from a consumer: the message with this @Offset is refused
)

// Receipts is a filter of its own, for the connection that subscribes to it: ahead of each batch of its PUBACKs and PUBRECs comes a
// message of this name at QoS 0, which says where the messages they are for have been stored. It is a row of runs of
// ReceiptBytes, big-endian as all of MQTT is:
//
//	packet id u16 | count u16 | offset u64 | time u64
//
// for publishes with consecutive packet ids that got consecutive offsets at one time (µs since 1970).
//
// MQTT 3.1.1 has no refusals, so such a connection is told in two more names: that a publish at QoS 1 is refused, ahead of its PUBACK, and that
// the broker ends the connection:
//
//	refused  packet id u16 | reason code of MQTT 5 u8 | text
//	closed   reason code of MQTT 5 u8 | text
const (
	Receipts        = "$edgemq/receipts"
	ReceiptsRefused = Receipts + "/refused"
	ReceiptsClosed  = Receipts + "/closed"
	ReceiptBytes    = 20
)
