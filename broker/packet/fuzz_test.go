package packet

import (
	"bytes"
	"reflect"
	"testing"
)

func seed(f *testing.F) {
	for _, g := range goldens {
		f.Add(byte(g.v), bin(g.wire))
	}
	for _, wire := range []string{
		"3d [ s:a/b 0001 [ 23 0003 02 00000009 03 s:t 26 s:@Offset s:5 ] 'x' ]", "30 [ s: [ 23 0001 ] ]", "40 [ 1234 97 [ 1f s:full ] ]",
		"62 02 0001", "c0 00", "82 06 00 01 00 00 01 61", "30 [ s:a [ 0b 01 0b ac02 ] ]", "b0 04 0001 00 11",
	} {
		for _, v := range []Version{V31, V311, V5} {
			f.Add(byte(v), bin(wire))
		}
	}
}

// FuzzCheck: no frame panics; what is accepted is whole, and Split, the parser and Check agree on it; and
// decoding, encoding and decoding again gives the same packet.
func FuzzCheck(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, version byte, frame []byte) {
		v := Version(version)
		err := Check(v, frame)
		if len(frame) == 0 {
			return
		}
		got, decodeErr := func() (any, error) {
			if typ := TypeOf(frame); typ == TypePingreq || typ == TypePingresp || typ == 0 {
				return nil, nil
			}
			return decode(v, frame)
		}()
		if fromServer(TypeOf(frame)) {
			err = decodeErr
		}
		if err != nil {
			return
		}
		size, header, splitErr := Split(frame, v, 0)
		if splitErr != nil || size != len(frame) || header < 2 {
			t.Fatalf("accepted, but Split says %d %d %v of %d", size, header, splitErr, len(frame))
		}
		if decodeErr != nil {
			t.Fatalf("Check accepts what the parser refuses: %v", decodeErr)
		}
		if got == nil {
			return
		}
		again, err := decode(v, encode(nil, v, TypeOf(frame), got))
		if err != nil {
			t.Fatalf("encoding of %+v does not parse: %v", got, err)
		}
		if !reflect.DeepEqual(essence(got), essence(again)) {
			t.Fatalf("decoded\n%+v, encoded and decoded\n%+v", essence(got), essence(again))
		}
	})
}

// essence takes out what an encoding may change: the place of properties, and an ack's user properties.
func essence(p any) any {
	switch p := p.(type) {
	case *Publish:
		q := *p
		q.Props, q.Cut = p.AppendStoredProps([]byte{}), false
		return q
	case *Ack:
		a := *p
		a.Props = []byte(a.Reason())
		return a
	}
	return p
}

// FuzzDelivery: the client side of PUBLISH, with its subscription identifiers.
func FuzzDelivery(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, version byte, frame []byte) {
		v := Version(version)
		var p, q Publish
		if ParseDelivery(v, frame, &p) != nil {
			return
		}
		o := outgoing(&p)
		b := AppendPublish(nil, v, o)
		if len(b) != PublishSize(v, o) || len(b) > len(frame) {
			t.Fatalf("%d bytes of %d, PublishSize says %d", len(b), len(frame), PublishSize(v, o))
		}
		if err := ParseDelivery(v, b, &q); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(essence(&p), essence(&q)) || !reflect.DeepEqual(p.SubscriptionIDs(nil), q.SubscriptionIDs(nil)) {
			t.Fatalf("%+v became %+v", p, q)
		}
		if CheckStored(p.AppendStoredProps(nil)) != nil {
			t.Fatal("stored properties are not in stored form")
		}
	})
}

// FuzzSplit: the first frame does not depend on what follows it or on how much of it has come.
func FuzzSplit(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, version byte, b []byte) {
		v := Version(version)
		size, header, err := Split(b, v, 1<<20)
		for n := range min(len(b), 8) {
			s, h, e := Split(b[:n], v, 1<<20)
			if e != nil && err == nil {
				t.Fatalf("%d bytes are refused (%v), all are not", n, e)
			}
			if s != 0 && (s != size || h != header) {
				t.Fatalf("%d bytes say %d, all say %d", n, s, size)
			}
		}
		if err == nil && size > 1<<20 {
			t.Fatalf("size %d is over the limit", size)
		}
		name, peeked := PeekTopic(b) // whatever it is
		if err != nil || size == 0 || size > len(b) {
			return
		}
		if peeked != size {
			t.Fatalf("PeekTopic says %d, Split says %d", peeked, size)
		}
		if p := new(Publish); TypeOf(b) == TypePublish && ParsePublish(v, b[:size], p) == nil && string(p.Topic) != string(name) {
			t.Fatalf("PeekTopic says %q, ParsePublish says %q", name, p.Topic)
		}
	})
}

// FuzzEnvelope: a $v5/ payload taken apart and put together says the same.
func FuzzEnvelope(f *testing.F) {
	f.Add(bin("[ 02 0000003c 01 01 26 s:k s:v ] 'body'"))
	f.Add(bin("00"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var p, q Publish
		if ParseEnvelope(payload, &p) != nil {
			return
		}
		if err := ParseEnvelope(AppendEnvelope(nil, outgoing(&p)), &q); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(essence(&p), essence(&q)) {
			t.Fatalf("%+v became %+v", p, q)
		}
	})
}

// FuzzPlain holds the eight-bytes-at-a-time test against a look at each byte.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"", "abcdefgh", "abcdefg#", "+bcdefgh", "plant/7/line/3/temperature", "\x00", "1234567\x001", "\"\",*!$*,\"", "#\"#\"#\"#\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := !bytes.ContainsFunc(b, func(r rune) bool { return r == 0 || r >= 0x80 || r == '+' || r == '#' })
		if plain(b) != want {
			t.Fatalf("plain(%q) = %v", b, !want)
		}
	})
}
