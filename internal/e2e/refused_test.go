package e2e

import (
	"strings"
	"testing"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// What a client cannot be told is told to the operator: a publish that MQTT 3.1.1 has no refusal for, and a $nack at QoS 0 that says nothing.
func TestRefusalsInTheLog(t *testing.T) {
	t.Parallel()
	p := testbroker.Start(t, testbroker.Options{Set: []string{"log.level=debug"}})
	old := testbroker.ConnectRaw(t, p.Addr, packet.V311, &packet.Connect{ClientID: "old", Clean: true})
	old.Send(packet.AppendPublish(nil, packet.V311, &packet.Outgoing{Topic: "$queue/no such name", QoS: 1, PacketID: 1}))
	old.ExpectClosed()
	waitFor(t, p, `level=WARN msg="publish refused, connection closed`, 1)
	waitFor(t, p, `client=old reason="topic: `, 1)
	c := testbroker.ConnectRaw(t, p.Addr, packet.V5, &packet.Connect{ClientID: "new", Clean: true})
	c.Send(packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "$queue/q/$nack", Payload: []byte("nonsense")}))
	waitFor(t, p, `level=WARN msg="refusal of a queue's message that says nothing, at QoS 0"`, 1)
	c.Close()
	waitFor(t, p, `msg="connection ended"`, 2)
	if strings.Contains(p.Log(), "err=<nil>") || strings.Contains(p.Log(), `cause=""`) {
		t.Error(p.Log())
	}
}
