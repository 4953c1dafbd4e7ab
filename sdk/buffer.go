package sdk

import (
	"context"
	"sync"
)

// BufferOptions bound a Buffer. Zeros mean no bound.
type BufferOptions struct {
	Capacity, CapacityBytes int // Put refuses what would go beyond
	High, HighBytes         int // at this fill the buffer is throttled,
	Low, LowBytes           int // until it has come down to both of these
	// OnThrottle is called when that changes, with the buffer locked: it must not call the buffer.
	OnThrottle func(throttled bool)
}

// Buffer is a bounded queue between who fetches and who processes. It never grows beyond its capacity and it
// never blocks Put; its watermarks tell when to stop fetching and when to go on. It is safe for concurrent use.
type Buffer[T any] struct {
	o    BufferOptions
	size func(T) int

	mu        sync.Mutex
	items     []T // items[head:] wait
	head      int
	bytes     int
	throttled bool
	closed    bool
	wait      chan struct{} // closed when something changes; nil: nobody waits
}

// NewBuffer makes a buffer. size says what an item counts in bytes; nil counts none.
func NewBuffer[T any](o BufferOptions, size func(T) int) *Buffer[T] {
	if size == nil {
		size = func(T) int { return 0 }
	}
	return &Buffer[T]{o: o, size: size}
}

// Put adds an item. It returns ErrBufferFull at the capacity and ErrClosed after Close.
func (b *Buffer[T]) Put(v T) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.size(v)
	switch {
	case b.closed:
		return ErrClosed
	case b.o.Capacity > 0 && len(b.items)-b.head >= b.o.Capacity, b.o.CapacityBytes > 0 && b.bytes+n > b.o.CapacityBytes:
		return ErrBufferFull
	}
	if b.head > 1024 && b.head > len(b.items)/2 {
		b.compact()
	}
	b.items = append(b.items, v)
	b.bytes += n
	b.level()
	b.signal()
	return nil
}

func (b *Buffer[T]) compact() {
	n := copy(b.items, b.items[b.head:])
	clear(b.items[n:])
	b.items, b.head = b.items[:n], 0
}

// level moves the throttle.
func (b *Buffer[T]) level() {
	n := len(b.items) - b.head
	was := b.throttled
	switch {
	case b.o.High > 0 && n >= b.o.High, b.o.HighBytes > 0 && b.bytes >= b.o.HighBytes:
		b.throttled = true
	case (b.o.High == 0 || n <= b.o.Low) && (b.o.HighBytes == 0 || b.bytes <= b.o.LowBytes):
		b.throttled = false
	}
	if was != b.throttled && b.o.OnThrottle != nil {
		b.o.OnThrottle(b.throttled)
	}
}

func (b *Buffer[T]) signal() {
	if b.wait != nil {
		close(b.wait)
		b.wait = nil
	}
}

// TryTake takes the oldest item; ok is false if there is none.
func (b *Buffer[T]) TryTake() (v T, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take()
}

func (b *Buffer[T]) take() (v T, ok bool) {
	if b.head == len(b.items) {
		return v, false
	}
	var zero T
	v, b.items[b.head] = b.items[b.head], zero
	if b.head++; b.head == len(b.items) {
		b.items, b.head = b.items[:0], 0
	}
	b.bytes -= b.size(v)
	b.level()
	return v, true
}

// Take takes the oldest item and waits for one if need be. After Close it returns what is left, then ErrClosed.
func (b *Buffer[T]) Take(ctx context.Context) (T, error) {
	for {
		b.mu.Lock()
		v, ok := b.take()
		closed := b.closed
		b.mu.Unlock()
		if ok {
			return v, nil
		}
		if closed {
			return v, ErrClosed
		}
		select {
		case <-b.Changed():
		case <-ctx.Done():
			return v, context.Cause(ctx)
		}
	}
}

// Changed is closed when there is something to take, or the buffer is closed; at once, if it is so already.
func (b *Buffer[T]) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.head < len(b.items) {
		return closedChan
	}
	if b.wait == nil {
		b.wait = make(chan struct{})
	}
	return b.wait
}

// Poke wakes those who wait, so that they look again.
func (b *Buffer[T]) poke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.signal()
}

// Len is the number of items.
func (b *Buffer[T]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.items) - b.head
}

// Bytes is the sum of their sizes.
func (b *Buffer[T]) Bytes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// Throttled reports whether the high watermark was reached and the low one not yet since.
func (b *Buffer[T]) Throttled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.throttled
}

// Clear drops all items.
func (b *Buffer[T]) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items, b.head, b.bytes = nil, 0, 0
	b.level()
}

// Close makes Put fail and wakes all who wait in Take. It may be called twice.
func (b *Buffer[T]) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.signal()
	return nil
}
