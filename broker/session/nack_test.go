package session

import (
	"math"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// FuzzRefusal reads arbitrary payloads and properties as a refusal: one packet id or offset, and a delay that a timer can have.
func FuzzRefusal(f *testing.F) {
	for _, text := range []string{"#17 2.5 printer on fire", "4711", "#0", "1 NaN", "1 -1", "1 1e9 x", "18446744073709551616", "# 1", "#17 never broken", "1 never"} {
		f.Add([]byte(text), []byte(nil))
	}
	f.Add([]byte(nil), packet.AppendUser(packet.AppendUser(nil, wire.Offset, "5"), wire.Delay, "1e-9"))
	f.Fuzz(func(t *testing.T, payload, props []byte) {
		if err := packet.ParsePublish(packet.V5, packet.AppendPublish(nil, packet.V5, &packet.Outgoing{QoS: 1, PacketID: 1, Topic: "t", Props: props}), &packet.Publish{}); err != nil {
			return // the codec lets none such through
		}
		r, err := parseRefusal(&packet.Publish{Payload: payload, Props: props})
		if err != nil {
			return
		}
		if r.delay < feed.Never || r.delay > math.MaxInt64/2 || r.id != 0 && r.offset != 0 || r.delay > 1e9*time.Second {
			t.Errorf("%q, %q: %+v", payload, props, r)
		}
	})
}
