// Package sparse has tables by number, for numbers that are given in turn, never twice, and given up in any order: most of those that live are the
// newest, and some are as old as the data. A table is a slice that has holes: what it takes is by the numbers that live, but for 8 bytes
// for each 16,384 that ever did.
package sparse

import (
	"iter"
	"sync/atomic"
)

const (
	leafBits = 6
	midBits  = 8
	leafSize = 1 << leafBits
	midSize  = 1 << midBits
)

type (
	leaf[T any] [leafSize]T
	mid[T any]  [midSize]atomic.Pointer[leaf[T]]
)

// Table has a T for each number, the zero one for most. At takes no lock, and may be called while one other goroutine at a time changes the table; what the
// places themselves hold is up to who shares them. The zero Table is empty.
type Table[T any] struct {
	root atomic.Pointer[[]atomic.Pointer[mid[T]]]
}

// At returns the place of a number, nil if the table has none.
func (t *Table[T]) At(n uint32) *T {
	root := t.root.Load()
	if root == nil || uint64(n>>(leafBits+midBits)) >= uint64(len(*root)) {
		return nil
	}
	m := (*root)[n>>(leafBits+midBits)].Load()
	if m == nil {
		return nil
	}
	l := m[n>>leafBits&(midSize-1)].Load()
	if l == nil {
		return nil
	}
	return &l[n&(leafSize-1)]
}

// Make returns the place of a number, and makes it.
func (t *Table[T]) Make(n uint32) *T {
	if at := t.At(n); at != nil {
		return at
	}
	i := int(n >> (leafBits + midBits))
	root := t.root.Load()
	if root == nil || i >= len(*root) {
		larger := make([]atomic.Pointer[mid[T]], i+1)
		if root != nil {
			for k := range *root {
				larger[k].Store((*root)[k].Load())
			}
		}
		root = &larger
		t.root.Store(root)
	}
	m := (*root)[i].Load()
	if m == nil {
		m = new(mid[T])
		(*root)[i].Store(m)
	}
	l := &m[n>>leafBits&(midSize-1)]
	if l.Load() == nil {
		l.Store(new(leaf[T]))
	}
	return t.At(n)
}

// leaves yields where the leaves are that there are, each with its first number.
func (t *Table[T]) leaves() iter.Seq2[uint32, *atomic.Pointer[leaf[T]]] {
	return func(yield func(uint32, *atomic.Pointer[leaf[T]]) bool) {
		root := t.root.Load()
		if root == nil {
			return
		}
		for i := range *root {
			m := (*root)[i].Load()
			if m == nil {
				continue
			}
			for j := range m {
				if m[j].Load() != nil && !yield(uint32(i<<(leafBits+midBits)|j<<leafBits), &m[j]) {
					return
				}
			}
		}
	}
}

// All yields the places that there are, those of numbers that nobody has made included, by number.
func (t *Table[T]) All() iter.Seq2[uint32, *T] {
	return func(yield func(uint32, *T) bool) {
		for first, at := range t.leaves() {
			l := at.Load()
			if l == nil { // given back meanwhile
				continue
			}
			for k := range l {
				if !yield(first|uint32(k), &l[k]) {
					return
				}
			}
		}
	}
}

// Trim gives back the memory of stretches in which all places are empty.
func (t *Table[T]) Trim(empty func(*T) bool) {
	for _, at := range t.leaves() {
		if blank(at.Load(), empty) {
			at.Store(nil)
		}
	}
	root := t.root.Load()
	if root == nil {
		return
	}
	for i := range *root {
		if m := (*root)[i].Load(); m != nil && m.bare() {
			(*root)[i].Store(nil)
		}
	}
}

func (m *mid[T]) bare() bool {
	for j := range m {
		if m[j].Load() != nil {
			return false
		}
	}
	return true
}

func blank[T any](l *leaf[T], empty func(*T) bool) bool {
	for k := range l {
		if !empty(&l[k]) {
			return false
		}
	}
	return true
}
