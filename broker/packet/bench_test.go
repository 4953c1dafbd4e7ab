package packet

import (
	"fmt"
	"testing"
)

func BenchmarkParsePublish(b *testing.B) {
	for _, size := range []int{16, 1024} {
		o := Outgoing{QoS: 1, PacketID: 7, Topic: "plant/7/line/3/temperature", Payload: make([]byte, size)}
		user := Outgoing{QoS: 1, PacketID: 7, Topic: o.Topic, Payload: o.Payload, Extra: []UserProperty{{"@MessageId", "8a1f-0001"}, {"@ShardingKey", "line-3"}}}
		for _, c := range []struct {
			name  string
			frame []byte
			v     Version
		}{
			{"v=4", AppendPublish(nil, V311, &o), V311},
			{"v=5", AppendPublish(nil, V5, &o), V5},
			{"v=5+2props", AppendPublish(nil, V5, &user), V5},
		} {
			b.Run(fmt.Sprintf("%s/size=%d", c.name, size), func(b *testing.B) {
				var p Publish
				b.SetBytes(int64(len(c.frame)))
				for b.Loop() {
					if _, _, err := Split(c.frame, c.v, 1<<20); err != nil {
						b.Fatal(err)
					}
					if err := ParsePublish(c.v, c.frame, &p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkAppendPublish(b *testing.B) {
	for _, v := range []Version{V311, V5} {
		b.Run(fmt.Sprintf("v=%d/size=128", v), func(b *testing.B) {
			o := Outgoing{QoS: 1, PacketID: 7, Topic: "plant/7/line/3/temperature", Payload: make([]byte, 128)}
			buf := make([]byte, 0, 512)
			for b.Loop() {
				buf = AppendPublish(buf[:0], v, &o)
			}
		})
	}
}

func BenchmarkAck(b *testing.B) {
	var a Ack
	buf := make([]byte, 0, 16)
	for b.Loop() {
		buf = AppendAck(buf[:0], V5, TypePuback, 7, CodeSuccess, "")
		if err := ParseAck(V5, buf, &a); err != nil {
			b.Fatal(err)
		}
	}
}
