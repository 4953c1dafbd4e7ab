package sdk

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Metrics is an Observer that counts, and an http.Handler that shows the counts as Prometheus reads them. One
// Metrics may serve many clients.
//
//	m := sdk.NewMetrics()
//	http.Handle("/metrics", m)
//	client, err := sdk.Dial(ctx, url, sdk.WithObserver(m))
type Metrics struct {
	sent, sentBytes, received, receivedBytes, duplicates atomic.Int64
	failed                                               [3]atomic.Int64 // by Knowledge
	lost, handlerErrors                                  atomic.Int64
	connections                                          atomic.Int64
	ack, handled                                         histogram
}

// NewMetrics makes Metrics.
func NewMetrics() *Metrics { return &Metrics{} }

// buckets are the bounds of the histograms, in seconds.
var buckets = [...]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

type histogram struct {
	mu    sync.Mutex
	count [len(buckets) + 1]int64
	sum   float64
}

func (h *histogram) add(d time.Duration) {
	s, i := d.Seconds(), 0
	for i < len(buckets) && s > buckets[i] {
		i++
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count[i]++
	h.sum += s
}

func (h *histogram) write(w io.Writer, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintf(w, "# TYPE %s histogram\n", name)
	n := int64(0)
	for i, le := range buckets {
		n += h.count[i]
		fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, le, n)
	}
	n += h.count[len(buckets)]
	fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %g\n%s_count %d\n", name, n, name, h.sum, name, n)
}

// Sent counts a message handed to a connection.
func (m *Metrics) Sent(bytes int) { m.sent.Add(1); m.sentBytes.Add(int64(bytes)) }

// Acknowledged counts a message that is on the broker's disk.
func (m *Metrics) Acknowledged(latency time.Duration) { m.ack.add(latency) }

// Failed counts a message given up.
func (m *Metrics) Failed(k Knowledge) { m.failed[k].Add(1) }

// Received counts a message that came.
func (m *Metrics) Received(bytes int) { m.received.Add(1); m.receivedBytes.Add(int64(bytes)) }

// Duplicate counts a message that came again.
func (m *Metrics) Duplicate() { m.duplicates.Add(1) }

// Connection counts connections.
func (m *Metrics) Connection(up bool) {
	if up {
		m.connections.Add(1)
		return
	}
	m.connections.Add(-1)
	m.lost.Add(1)
}

// Handled counts a handler's work.
func (m *Metrics) Handled(latency time.Duration, err error) {
	m.handled.add(latency)
	if err != nil {
		m.handlerErrors.Add(1)
	}
}

// ServeHTTP shows the metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	m.write(w)
}

func (m *Metrics) write(w io.Writer) {
	counter := func(name string, v int64) {
		fmt.Fprintf(w, "# TYPE edgemq_sdk_%s counter\nedgemq_sdk_%s %d\n", name, name, v)
	}
	counter("sent_messages_total", m.sent.Load())
	counter("sent_bytes_total", m.sentBytes.Load())
	counter("received_messages_total", m.received.Load())
	counter("received_bytes_total", m.receivedBytes.Load())
	counter("duplicate_messages_total", m.duplicates.Load())
	counter("lost_connections_total", m.lost.Load())
	counter("handler_errors_total", m.handlerErrors.Load())
	fmt.Fprintf(w, "# TYPE edgemq_sdk_failed_messages_total counter\n")
	for k, name := range [...]string{"not_sent", "unknown", "refused"} {
		fmt.Fprintf(w, "edgemq_sdk_failed_messages_total{known=%q} %d\n", name, m.failed[k].Load())
	}
	fmt.Fprintf(w, "# TYPE edgemq_sdk_connections gauge\nedgemq_sdk_connections %d\n", m.connections.Load())
	m.ack.write(w, "edgemq_sdk_ack_seconds")
	m.handled.write(w, "edgemq_sdk_handler_seconds")
}
