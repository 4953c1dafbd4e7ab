package topic

import (
	"slices"
	"strings"
)

// tree is a trie by level, for filters (Index) and for names (Names). An inner node exists only while something
// below it does, so walks never meet a dead end that was once alive.
type tree[P any] struct {
	root node[P]
}

type node[P any] struct {
	level    string
	parent   *node[P]
	at       int                 // place in parent.children; wildcards have none
	children []*node[P]          // all but the wildcards
	byLevel  map[string]*node[P] // the same, once there are many
	plus     *node[P]            // the child + of a filter
	hash     *node[P]            // the child # of a filter
	payload  *P                  // nil if nothing ends here
}

// manyChildren is when a map is faster than looking at each; most nodes have one child and need neither its
// time nor its memory.
const manyChildren = 8

func (n *node[P]) child(level string) *node[P] {
	if n.byLevel != nil {
		return n.byLevel[level]
	}
	for _, c := range n.children {
		if c.level == level {
			return c
		}
	}
	return nil
}

// find returns the node of a path, nil if there is none.
func (t *tree[P]) find(path string) *node[P] {
	for n := &t.root; ; {
		level, rest, more := strings.Cut(path, "/")
		switch level {
		case "+":
			n = n.plus
		case "#":
			n = n.hash
		default:
			n = n.child(level)
		}
		if n == nil || !more {
			return n
		}
		path = rest
	}
}

// insert returns the node of a path, making what is missing of it.
func (t *tree[P]) insert(path string) *node[P] {
	for n := &t.root; ; {
		level, rest, more := strings.Cut(path, "/")
		if more {
			n = n.add(level, true)
		} else {
			return n.add(level, false)
		}
		path = rest
	}
}

// add returns the child of that level, new if need be. An inner level is cloned, so that a short-lived path
// does not keep its whole string alive in a node that others share.
func (n *node[P]) add(level string, clone bool) *node[P] {
	switch level {
	case "+":
		if n.plus == nil {
			n.plus = &node[P]{level: "+", parent: n}
		}
		return n.plus
	case "#":
		if n.hash == nil {
			n.hash = &node[P]{level: "#", parent: n}
		}
		return n.hash
	}
	if c := n.child(level); c != nil {
		return c
	}
	if clone {
		level = strings.Clone(level)
	}
	c := &node[P]{level: level, parent: n, at: len(n.children)}
	n.children = append(n.children, c)
	if n.byLevel != nil {
		n.byLevel[level] = c
	} else if len(n.children) > manyChildren {
		n.byLevel = make(map[string]*node[P], 2*manyChildren)
		for _, c := range n.children {
			n.byLevel[c.level] = c
		}
	}
	return c
}

// prune removes n and those above it that nothing needs any more.
func (n *node[P]) prune() {
	for n.parent != nil && n.payload == nil && len(n.children) == 0 && n.plus == nil && n.hash == nil {
		p := n.parent
		switch n {
		case p.plus:
			p.plus = nil
		case p.hash:
			p.hash = nil
		default:
			p.drop(n)
		}
		n = p
	}
}

func (n *node[P]) drop(c *node[P]) {
	last := len(n.children) - 1
	n.children[c.at] = n.children[last]
	n.children[c.at].at = c.at
	n.children[last] = nil
	n.children = n.children[:last]
	if cap(n.children) > 4*manyChildren && last < cap(n.children)/4 {
		n.children = slices.Clip(slices.Clone(n.children))
	}
	if n.byLevel == nil {
		return
	}
	if delete(n.byLevel, c.level); last <= manyChildren/2 {
		n.byLevel = nil
	}
}
