package sdk

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
)

// Kind is the type of a header's or property's value.
type Kind byte

// The kinds. The zero Value has KindNone.
const (
	KindNone Kind = iota
	KindString
	KindInt32
	KindInt64
	KindFloat64
)

var kindNames = [...]string{"none", "string", "int32", "int64", "float64"}

// String names the kind: none, string, int32, int64 or float64.
func (k Kind) String() string { return kindNames[k] }

// tag is how @types names the kind.
func (k Kind) tag() byte { return " sild"[k] }

// Value is a typed value of a header or property. A number keeps its type: an int32 1 and an int64 1 are
// different values.
type Value struct {
	kind Kind
	bits uint64
	text string
}

// String makes a string value.
func String(s string) Value { return Value{kind: KindString, text: s} }

// Int32 makes a 32-bit integer value.
func Int32(v int32) Value { return Value{kind: KindInt32, bits: uint64(int64(v))} }

// Int64 makes a 64-bit integer value.
func Int64(v int64) Value { return Value{kind: KindInt64, bits: uint64(v)} }

// Float64 makes a floating-point value; every bit of it survives, NaNs and -0 included.
func Float64(v float64) Value { return Value{kind: KindFloat64, bits: math.Float64bits(v)} }

// Kind returns the value's type, KindNone if there is no value.
func (v Value) Kind() Kind { return v.kind }

func (v Value) is(k Kind) error {
	if v.kind == k || v.kind == KindNone {
		return nil
	}
	return fmt.Errorf("%w: it is %v, not %v", ErrType, v.kind, k)
}

// Int32 returns a 32-bit integer; 0 if there is no value, ErrType if it is of another type.
func (v Value) Int32() (int32, error) {
	if err := v.is(KindInt32); err != nil {
		return 0, err
	}
	return int32(v.bits), nil
}

// Int64 returns a 64-bit integer; 0 if there is no value, ErrType if it is of another type.
func (v Value) Int64() (int64, error) {
	if err := v.is(KindInt64); err != nil {
		return 0, err
	}
	return int64(v.bits), nil
}

// Float64 returns a floating-point number; 0 if there is no value, ErrType if it is of another type.
func (v Value) Float64() (float64, error) {
	if err := v.is(KindFloat64); err != nil {
		return 0, err
	}
	return math.Float64frombits(v.bits), nil
}

// Text returns a string; "" if there is no value, ErrType if it is of another type.
func (v Value) Text() (string, error) {
	if err := v.is(KindString); err != nil {
		return "", err
	}
	return v.text, nil
}

// String is the value as text, whatever its type: the form it has on the wire.
func (v Value) String() string {
	if v.kind <= KindString {
		return v.text
	}
	return string(v.append(nil))
}

// append appends the shortest exact text.
func (v Value) append(dst []byte) []byte {
	switch v.kind {
	case KindInt32, KindInt64:
		return strconv.AppendInt(dst, int64(v.bits), 10)
	case KindFloat64:
		f := math.Float64frombits(v.bits)
		if f != f && v.bits != math.Float64bits(math.NaN()) {
			dst = append(dst, "NaN("...) // a NaN that says more than that it is one
			dst = strconv.AppendUint(dst, v.bits, 16)
			return append(dst, ')')
		}
		return strconv.AppendFloat(dst, f, 'g', -1, 64)
	}
	return append(dst, v.text...)
}

// parseValue reads text of a kind that @types names. What does not parse is a string: another program's
// mistake must not cost the message.
func parseValue(text string, tag byte) Value {
	switch tag {
	case 'i':
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			return Int32(int32(n))
		}
	case 'l':
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return Int64(n)
		}
	case 'd':
		if hex, ok := strings.CutPrefix(text, "NaN("); ok {
			if n, err := strconv.ParseUint(strings.TrimSuffix(hex, ")"), 16, 64); err == nil {
				return Value{kind: KindFloat64, bits: n}
			}
		}
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return Float64(f)
		}
	}
	return String(text)
}

// Field is a named value.
type Field struct {
	Name  string
	Value Value
}

// Values are a message's headers or properties, in the order they were put. The nil Values are none at all.
// Names are unique in what was put here; a message from elsewhere may repeat one.
type Values []Field

// Get returns the first value of that name, or the zero Value.
func (vs Values) Get(name string) Value {
	for i := range vs {
		if vs[i].Name == name {
			return vs[i].Value
		}
	}
	return Value{}
}

// Has reports whether there is a value of that name.
func (vs Values) Has(name string) bool { return vs.Get(name).kind != KindNone }

// Keys iterates over the names.
func (vs Values) Keys() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range vs {
			if !yield(vs[i].Name) {
				return
			}
		}
	}
}

// All iterates over names and values.
func (vs Values) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i := range vs {
			if !yield(vs[i].Name, vs[i].Value) {
				return
			}
		}
	}
}

// put inserts or replaces.
func (vs *Values) put(name string, v Value) {
	for i := range *vs {
		if (*vs)[i].Name == name {
			(*vs)[i].Value = v
			return
		}
	}
	*vs = append(*vs, Field{name, v})
}
