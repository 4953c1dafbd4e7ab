package topic

// Index finds the subscriptions whose filter matches a topic, in time linear in the topic's levels and the
// matches. K tells the subscribers of one filter apart. It is not locked: the owner locks, and Match may run
// beside other Matches but not beside Add or Remove. Filters must be valid. The zero value is ready to use.
type Index[K comparable, V any] struct {
	_ K
	_ V
}

// Add subscribes key to filter, replacing what key had there; it reports whether the pair is new.
func (x *Index[K, V]) Add(filter string, key K, v V) (added bool) { panic("todo") }

// Remove ends key's subscription to filter; it reports whether there was one.
func (x *Index[K, V]) Remove(filter string, key K) (removed bool) { panic("todo") }

// Get returns the value of key at filter.
func (x *Index[K, V]) Get(filter string, key K) (v V, ok bool) { panic("todo") }

// Match calls fn for every subscription whose filter matches topic, once per filter and key (a key with
// several matching filters is seen several times), in no particular order. fn must not change the index.
func (x *Index[K, V]) Match(topic string, fn func(key K, v V)) { panic("todo") }

// Len is the number of subscriptions.
func (x *Index[K, V]) Len() int { panic("todo") }

// Names is the inverse of Index: topics are stored and a filter is asked for, at the cost of what matches and
// not of what exists. It serves retained messages and the topics of a binding. Not locked: see Index. The zero value is ready to use.
type Names[V any] struct{ _ V }

// Set stores v under topic; it reports whether the topic is new.
func (n *Names[V]) Set(topic string, v V) (added bool) { panic("todo") }

// Get returns what is stored under topic.
func (n *Names[V]) Get(topic string) (v V, ok bool) { panic("todo") }

// Delete removes topic; it reports whether it was there.
func (n *Names[V]) Delete(topic string) bool { panic("todo") }

// Match calls fn for every stored topic that filter matches until fn returns false. Order: a topic before
// those below it, otherwise none. fn must not change n.
func (n *Names[V]) Match(filter string, fn func(topic string, v V) bool) { panic("todo") }

// Len is the number of topics.
func (n *Names[V]) Len() int { panic("todo") }
