package session

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
)

// A connection that is ended between its CONNACK and its first delivery is told why, and one that is ended before gets no DISCONNECT.
// [MQTT-3.14.0-1]
func TestKickAfterConnack(t *testing.T) {
	m := newManager(t, openStore(t))
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for _, greeted := range []bool{false, true} {
			server, client := net.Pipe()
			l := m.NewLink(server)
			l.Connect, l.Version = &packet.Connect{Version: v}, v
			connack := packet.AppendConnack(nil, v, &packet.Connack{})
			var want []byte
			if greeted {
				l.Accept(connack)
				want = append(want, connack...)
				if v == packet.V5 {
					want = packet.AppendDisconnect(want, v, &packet.Disconnect{Code: packet.CodeTakenOver, ReasonString: "why"})
				}
			}
			l.Kick(packet.CodeTakenOver, "why")
			if !greeted {
				l.Accept(connack)
			}
			l.Start()
			if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, want) {
				t.Errorf("version %d, greeted %v: % x %v, want % x", v, greeted, got, err, want)
			}
			m.Detach(l)
		}
	}
	m.Wait()
}
