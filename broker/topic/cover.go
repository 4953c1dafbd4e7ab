package topic

import "strings"

// Covers reports whether every topic that the valid filter inner matches is matched by the valid filter outer as well.
func Covers(outer, inner string) bool {
	outer, inner = whole(outer), whole(inner)
	if hidden(outer, inner) {
		return false
	}
	for outer != "#" {
		o, outerRest, outerMore := strings.Cut(outer, "/")
		i, innerRest, innerMore := strings.Cut(inner, "/")
		if i == "#" || o != "+" && o != i { // what + or # stands for is more than a level that is named
			return false
		}
		switch {
		case outerMore && innerMore:
			outer, inner = outerRest, innerRest
		case outerMore:
			return outerRest == "#" // a/# matches a as well (4.7.1.2)
		default:
			return !innerMore
		}
	}
	return true
}

// Overlap reports whether there is a topic that both valid filters match.
func Overlap(a, b string) bool {
	a, b = whole(a), whole(b)
	if hidden(a, b) || hidden(b, a) {
		return false
	}
	for a != "#" && b != "#" {
		x, aRest, aMore := strings.Cut(a, "/")
		y, bRest, bMore := strings.Cut(b, "/")
		if x != y && x != "+" && y != "+" {
			return false
		}
		switch {
		case aMore && bMore:
			a, b = aRest, bRest
		case aMore:
			return aRest == "#"
		case bMore:
			return bRest == "#"
		default:
			return true
		}
	}
	return true
}

// whole writes the filter # as what it matches: topics of one level or more.
func whole(filter string) string {
	if filter == "#" {
		return "+/#"
	}
	return filter
}

// hidden tells whether the filter begins with a wildcard and the other one with a level that begins with $, which no leading
// wildcard matches. [MQTT-4.7.2-1]
func hidden(filter, other string) bool {
	return strings.HasPrefix(filter, "+") && strings.HasPrefix(other, "$")
}
