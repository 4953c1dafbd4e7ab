package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// The ends of a broker: by kill -9, and by SIGTERM.
var ends = map[string]func(*testbroker.Process){
	"kill": (*testbroker.Process).Kill,
	"stop": (*testbroker.Process).Stop,
}

// A Will whose CONNACK was sent outlives the broker: the client's connection ended without a DISCONNECT, so it is published, once, to
// whoever has a session, and retained if it is to be. What a delay or a session's expiry leave of time goes on meanwhile.
func TestWillsOutliveTheBroker(t *testing.T) {
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := testbroker.Start(t, testbroker.Options{})
			witness := keeperRaw(t, p, "witness", nil)
			witness.Subscribe("will/#", 1)
			const never = 0xFFFFFFFF
			for _, c := range []struct {
				id            string
				v             packet.Version
				clean         bool
				expiry, delay uint32
			}{
				{"clean", packet.V5, true, 0, 0},
				{"clean-3", packet.V311, true, 0, 0},
				{"durable-3", packet.V311, false, 0, 0},
				{"durable", packet.V5, false, never, 0},
				{"delayed", packet.V5, false, never, 4},
				{"session-ends", packet.V5, false, 4, 1000},
				{"back-in-time", packet.V5, false, never, 1000},
				{"said-goodbye", packet.V5, false, never, 0},
			} {
				r := testbroker.ConnectRaw(t, p.Addr, c.v, &packet.Connect{
					ClientID: c.id, Clean: c.clean, HasSessionExpiry: c.expiry > 0, SessionExpiry: c.expiry,
					Will: &packet.Will{Topic: "will/" + c.id, Payload: []byte(c.id), QoS: 1, Retain: true, Delay: c.delay},
				})
				if c.id == "said-goodbye" {
					r.Send(packet.AppendDisconnect(nil, c.v, &packet.Disconnect{}))
					r.ExpectClosed()
				}
			}
			start := time.Now()
			witness.Close()
			end(p)
			p.Restart()
			keeperRaw(t, p, "back-in-time", nil)
			witness = keeperRaw(t, p, "witness", nil)
			came := map[string]time.Duration{}
			for range 6 {
				d := witness.Delivery()
				came[d.Payload] = time.Since(start)
				witness.Ack(d)
			}
			for _, id := range []string{"clean", "clean-3", "durable-3", "durable", "delayed", "session-ends"} {
				if _, ok := came[id]; !ok {
					t.Errorf("the Will of %s did not come", id)
				}
			}
			for _, id := range []string{"delayed", "session-ends"} {
				if came[id] < 3900*time.Millisecond {
					t.Errorf("the Will of %s came after %v, want 4s", id, came[id])
				}
			}
			end(p) // and no second time
			p.Restart()
			log := testbroker.ConnectRaw(t, p.Addr, packet.V5, nil)
			log.Subscribe("$s/earliest/will/#", 0)
			for range 6 {
				log.Delivery()
			}
			if d, ok := log.DeliveryWithin(settleTime); ok {
				t.Errorf("%q was published again", d.Payload)
			}
			late := testbroker.ConnectRaw(t, p.Addr, packet.V5, nil)
			late.Subscribe("will/#", 0)
			kept := map[string]bool{}
			for range 6 {
				kept[late.Delivery().Payload] = true
			}
			if _, more := late.DeliveryWithin(settleTime); len(kept) != 6 || more {
				t.Errorf("retained: %v", kept)
			}
		})
	}
}

// A delayed Will that is under way when the broker ends comes when it is due, or at the start if that is past.
func TestDelayedWillUnderWay(t *testing.T) {
	for how, end := range ends {
		for _, down := range []time.Duration{0, 2500 * time.Millisecond} {
			t.Run(fmt.Sprint(how, " ", down), func(t *testing.T) {
				t.Parallel()
				p := testbroker.Start(t, testbroker.Options{})
				witness := keeperRaw(t, p, "witness", nil)
				witness.Subscribe("will", 1)
				witness.Close()
				r := keeperRaw(t, p, "c", &packet.Will{Topic: "will", Payload: []byte("gone"), QoS: 1, Delay: 2})
				r.Close()
				start := time.Now()
				<-timeAfter(100) // it is noticed; a kill before that would count from the broker's end
				end(p)
				<-time.After(down)
				p.Restart()
				witness = keeperRaw(t, p, "witness", nil)
				if d := witness.Delivery(); d.Payload != "gone" {
					t.Errorf("received %q", d.Payload)
				}
				if took := time.Since(start); took < 1900*time.Millisecond {
					t.Errorf("it came after %v, want 2s", took)
				}
			})
		}
	}
}

// keeperRaw connects a client whose session stays.
func keeperRaw(t *testing.T, p *testbroker.Process, id string, w *packet.Will) *testbroker.Raw {
	t.Helper()
	return testbroker.ConnectRaw(t, p.Addr, packet.V5, &packet.Connect{ClientID: id, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF, Will: w})
}
