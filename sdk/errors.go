package sdk

import (
	"errors"
	"fmt"
)

// Errors to branch on with errors.Is.
var (
	// ErrClosed means that the client, producer or consumer was closed.
	ErrClosed = errors.New("edgemq: closed")
	// ErrTooLarge means that a body is over MaxBody. Nothing was sent.
	ErrTooLarge = errors.New("edgemq: message is too large")
	// ErrNoMessage means that a nil message was sent.
	ErrNoMessage = errors.New("edgemq: message is nil")
	// ErrDestination means that a message has neither a topic nor a queue, or both, or one with an invalid name.
	ErrDestination = errors.New("edgemq: message needs exactly one valid destination, a topic or a queue")
	// ErrName means that a header's or property's name or text cannot be sent.
	ErrName = errors.New("edgemq: invalid header or property")
	// ErrType means that a value is of another type than the one asked for.
	ErrType = errors.New("edgemq: value is of another type")
	// ErrRefused means that the broker does not take the message or the subscription, however often it is tried.
	ErrRefused = errors.New("edgemq: refused by the broker")
	// ErrNotConnected means that there is no connection right now, for what cannot wait for one.
	ErrNotConnected = errors.New("edgemq: not connected")
	// ErrAttached means that a consumer is attached to another queue already.
	ErrAttached = errors.New("edgemq: already attached to another queue")
	// ErrNotAttached means that a consumer was not attached to a queue yet.
	ErrNotAttached = errors.New("edgemq: not attached to a queue")
	// ErrInUse means that another consumer holds what this one wants exclusively.
	ErrInUse = errors.New("edgemq: in use by another consumer")
	// ErrPartition means that a router returned a partition that does not exist.
	ErrPartition = errors.New("edgemq: no such partition")
	// ErrNoPartitions means that there is nowhere to send a message to.
	ErrNoPartitions = errors.New("edgemq: topic has no partitions")
	// ErrBufferFull means that a Buffer is at its capacity.
	ErrBufferFull = errors.New("edgemq: buffer is full")
	// ErrStale means that a message cannot be settled any more: it was settled before, or it has come again.
	ErrStale = errors.New("edgemq: message was settled already")
)

// Knowledge is what is known about a message whose sending failed.
type Knowledge int

// What can be known.
const (
	// NotSent: the message never left this process.
	NotSent Knowledge = iota
	// Unknown: the message was sent and no acknowledgement came. It may be stored; sending it again with the
	// same MessageId header does not store it twice.
	Unknown
	// Refused: the broker did not take it.
	Refused
)

// String says it in words.
func (k Knowledge) String() string {
	switch k {
	case NotSent:
		return "it was not sent"
	case Unknown:
		return "it may have been stored"
	}
	return "the broker refused it"
}

// SendError says what became of a message that was not acknowledged.
type SendError struct {
	MessageID string    // the id it was sent under: set it as the MessageId header to try again safely
	To        string    // topic or queue as published to
	Known     Knowledge // whether it can have been stored
	Code      byte      // of a refusal: MQTT 5's reason code, 0x87 if rules do not allow it, 0x97 if the queue is full; 0 if the broker did not say
	Err       error     // why it was given up: the context's error, ErrClosed, ErrRefused
}

// Error says which message, where to, why and what is known.
func (e *SendError) Error() string {
	return fmt.Sprintf("edgemq: send %s to %s: %v (%v)", e.MessageID, e.To, e.Err, e.Known)
}

// Unwrap returns the reason, for errors.Is.
func (e *SendError) Unwrap() error { return e.Err }

// FilterError says that the broker refused a subscription.
type FilterError struct{ Filter string }

// Error names the filter.
func (e *FilterError) Error() string { return "edgemq: subscription to " + e.Filter + " was refused" }

// Is makes errors.Is(err, ErrRefused) true.
func (e *FilterError) Is(target error) bool { return target == ErrRefused }
