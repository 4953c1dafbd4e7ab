package bench

import (
	"cmp"
	"slices"
	"time"
)

// Result is what a run of a load came to. What does not apply or is not known is zero.
type Result struct {
	Broker string `json:"broker"`
	Load   string `json:"load"`

	Messages    int64   `json:"messages,omitempty"` // published
	Received    int64   `json:"received,omitempty"` // by all consumers together, each message counted once a consumer
	Connections int     `json:"connections,omitempty"`
	Seconds     float64 `json:"seconds"`
	Rate        float64 `json:"per_second"`              // messages published; with consumers, received; connections
	MBps        float64 `json:"mb_per_second,omitempty"` // payload

	PublishRate    float64 `json:"publish_per_second,omitempty"` // of a drain
	ReadRate       float64 `json:"read_per_second,omitempty"`
	RestartSeconds float64 `json:"restart_seconds,omitempty"`

	Ack      *Latency `json:"ack,omitempty"`      // publish to acknowledgement
	Delivery *Latency `json:"delivery,omitempty"` // publish to consumer
	Connect  *Latency `json:"connect,omitempty"`  // dial to SUBACK

	BrokerCPU     float64 `json:"broker_cpu_us,omitempty"` // processor time for a message (of Live and fan-outs: a delivery), or a connection
	BrokerRSS     float64 `json:"broker_rss_mib,omitempty"`
	ConnectionKiB float64 `json:"connection_kib,omitempty"`
	ToolCPU       float64 `json:"tool_cpu_us"` // the same of this tool: if it is more than the broker's, the tool is the limit

	Faults  *Faults `json:"faults,omitempty"`
	Foreign int64   `json:"foreign,omitempty"` // messages of another run that came, too
	Broken  bool    `json:"broken"`            // MQTT's promise for the QoS was not kept

	publishing time.Duration
	cpu        time.Duration
}

// handled is what processor time is divided by.
func (r *Result) handled() int64 {
	return max(r.Messages, r.Received, int64(r.Connections), 1)
}

func perMessage(d time.Duration, n int64) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(n)
}

// note adds the processor time between two looks at the broker, and its memory.
func (r *Result) note(before, after usage) {
	if !before.known || !after.known {
		return
	}
	r.cpu += after.cpu - before.cpu
	r.BrokerCPU = perMessage(r.cpu, r.handled())
	r.BrokerRSS = max(r.BrokerRSS, float64(after.rss)/(1<<20))
}

// rate works out what follows from counts and time. A drain counts each message once: published and read.
func (r *Result) rate(size int) {
	n := r.Messages
	if r.Delivery != nil {
		n = r.Received
	}
	r.Rate = float64(n) / r.Seconds
	r.MBps = r.Rate * float64(size) / 1e6
	if r.cpu > 0 {
		r.BrokerCPU = perMessage(r.cpu, r.handled())
	}
}

// Spread is a figure over several runs.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf sums up what of gives for each run.
func SpreadOf(runs []*Result, of func(*Result) float64) Spread {
	if len(runs) == 0 {
		return Spread{}
	}
	values := make([]float64, 0, len(runs))
	for _, r := range runs {
		values = append(values, of(r))
	}
	slices.SortFunc(values, cmp.Compare)
	n := len(values)
	return Spread{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}
}
