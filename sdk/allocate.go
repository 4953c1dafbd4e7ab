package sdk

import (
	"errors"
	"fmt"
	"slices"
)

// Allocation says which partitions are a member's: a function of who there is, so that all members come to the
// same result without talking to each other. The results of all members are disjoint; those of strategies that are given
// no list of their own cover all partitions. A member that is not among members gets none.
type Allocation func(self string, members []string, partitions []int) ([]int, error)

// errAllocate is what Allocations have against their arguments.
var errAllocate = errors.New("edgemq: allocation needs a member's id, members and partitions")

// allocation checks the arguments and sorts them.
func allocation(f func(self int, members []string, partitions []int) []int) Allocation {
	return func(self string, members []string, partitions []int) ([]int, error) {
		if self == "" || len(members) == 0 || len(partitions) == 0 {
			return nil, errAllocate
		}
		members = slices.Compact(slices.Sorted(slices.Values(members)))
		partitions = slices.Compact(slices.Sorted(slices.Values(partitions)))
		i, ok := slices.BinarySearch(members, self)
		if !ok {
			return nil, nil
		}
		return f(i, members, partitions), nil
	}
}

// Averagely gives each member a contiguous slice; the first few get one more if it does not come out even. It is the default.
func Averagely() Allocation {
	return allocation(func(self int, members []string, partitions []int) []int {
		each, more := len(partitions)/len(members), len(partitions)%len(members)
		start := self*each + min(self, more)
		if self < more {
			each++
		}
		return partitions[start : start+each]
	})
}

// ByCircle gives the partitions out like cards.
func ByCircle() Allocation {
	return allocation(func(self int, members []string, partitions []int) []int {
		var mine []int
		for i := self; i < len(partitions); i += len(members) {
			mine = append(mine, partitions[i])
		}
		return mine
	})
}

// ByConsistentHash moves few partitions when a member comes or goes: about its share.
func ByConsistentHash() Allocation {
	return allocation(func(self int, members []string, partitions []int) []int {
		var r ring
		for i, m := range members {
			r.add(m, i)
		}
		r.sort()
		var mine []int
		for _, p := range partitions {
			if r.find(fmt.Sprint("partition ", p)) == self {
				mine = append(mine, p)
			}
		}
		return mine
	})
}

// ByList gives each member the partitions that a list names for it.
func ByList(lists map[string][]int) Allocation {
	return func(self string, members []string, partitions []int) ([]int, error) {
		if self == "" || len(members) == 0 || len(partitions) == 0 {
			return nil, errAllocate
		}
		if !slices.Contains(members, self) {
			return nil, nil
		}
		var mine []int
		for _, p := range partitions {
			if slices.Contains(lists[self], p) {
				mine = append(mine, p)
			}
		}
		return mine, nil
	}
}
