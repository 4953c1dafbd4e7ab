package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
)

// rule says what values a key may take, and carries them between YAML and Config.
type rule interface {
	// wants completes the sentence "it must be …".
	wants() string
	// set checks raw (what YAML, the environment or a flag gave) and stores it in dst, a pointer.
	set(dst, raw any) []Problem
	// text is the value dst points to as YAML, on one line.
	text(dst any) string
}

// number is an integer in a range.
type number struct{ min, max int64 }

func (n number) wants() string       { return fmt.Sprintf("a whole number from %d to %d", n.min, n.max) }
func (n number) text(dst any) string { return strconv.Itoa(*dst.(*int)) }

func (n number) set(dst, raw any) []Problem {
	v, err := strconv.ParseInt(scalar(raw), 10, 64)
	if err != nil || v < n.min || v > n.max {
		return refuse(n, raw)
	}
	*dst.(*int) = int(v)
	return nil
}

// size is a number of bytes in a range.
type size struct {
	min, max int64
	orZero   bool // 0 is possible too, and has a meaning of its own
}

func (s size) wants() string {
	return zeroOr(s.orZero) + "a size from " + formatSize(s.min) + " to " + formatSize(s.max)
}
func (s size) text(dst any) string { return formatSize(*dst.(*int64)) }

func (s size) set(dst, raw any) []Problem {
	v, err := parseSize(scalar(raw))
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return refuseLike(s, raw, "512, 64KiB or 10MB")
	}
	if err != nil || (v < s.min || v > s.max) && (v != 0 || !s.orZero) {
		return refuse(s, raw)
	}
	*dst.(*int64) = v
	return nil
}

// span is a duration in a range.
type span struct {
	min, max time.Duration
	orZero   bool // 0 is possible too, and has a meaning of its own
}

func (s span) wants() string {
	return zeroOr(s.orZero) + "a duration from " + FormatDuration(s.min) + " to " + FormatDuration(s.max)
}
func (s span) text(dst any) string { return FormatDuration(*dst.(*time.Duration)) }

func (s span) set(dst, raw any) []Problem {
	v, err := s.parse(scalar(raw))
	if errors.Is(err, strconv.ErrRange) {
		return refuse(s, raw)
	}
	if err != nil {
		return refuseLike(s, raw, "30s, 1h30m or 7d")
	}
	*dst.(*time.Duration) = v
	return nil
}

func (s span) parse(text string) (time.Duration, error) {
	v, err := ParseDuration(text)
	if err == nil && (v < s.min || v > s.max) && (v != 0 || !s.orZero) {
		err = strconv.ErrRange
	}
	return v, err
}

func zeroOr(possible bool) string {
	if possible {
		return "0 or "
	}
	return ""
}

// boolean is true or false.
type boolean struct{}

func (boolean) wants() string       { return "true or false" }
func (boolean) text(dst any) string { return strconv.FormatBool(*dst.(*bool)) }

func (f boolean) set(dst, raw any) []Problem {
	switch strings.ToLower(scalar(raw)) {
	case "true":
		*dst.(*bool) = true
	case "false":
		*dst.(*bool) = false
	default:
		return refuse(f, raw)
	}
	return nil
}

// words is one of a few.
type words []string

func (w words) wants() string {
	return strings.Join(w[:len(w)-1], ", ") + " or " + w[len(w)-1]
}
func (w words) text(dst any) string { return quote(*dst.(*string)) }

func (w words) set(dst, raw any) []Problem {
	got := strings.ToLower(scalar(raw))
	for _, word := range w {
		if got == word {
			*dst.(*string) = word
			return nil
		}
	}
	if len(w) == 1 {
		return []Problem{{Message: fmt.Sprintf("%s is not possible: it must be %s", show(raw), w[0])}}
	}
	return refuse(w, raw)
}

// text is free, but for its check.
type text struct {
	want  string
	check func(string) error
}

func (t text) wants() string       { return t.want }
func (t text) text(dst any) string { return quote(*dst.(*string)) }

func (t text) set(dst, raw any) []Problem {
	s := scalar(raw)
	if strings.Contains(s, "\x00") { // a list or a section, or what no file, token or address can have
		return refuse(t, raw)
	}
	if err := t.check(s); err != nil {
		return []Problem{{Message: fmt.Sprintf("%s is not possible: %v; it must be %s", show(raw), err, t.want)}}
	}
	*dst.(*string) = s
	return nil
}

// texts is a list of texts. In the environment and in flags it is a list separated by commas, or one in brackets as in YAML.
type texts struct {
	want, like  string // what they are, and an example of two
	check       func(string) error
	least, most int // how many there may be; most 0 is any number
}

func (t texts) wants() string {
	out := "a list of " + t.want
	if t.most > 0 {
		out = fmt.Sprintf("a list of %d to %d %s", t.least, t.most, t.want)
	}
	return out
}

func (t texts) text(dst any) string {
	var out []string
	for _, s := range *dst.(*[]string) {
		q := quote(s)
		if strings.ContainsAny(q, ",[]{}") && !strings.HasPrefix(q, "'") && !strings.HasPrefix(q, `"`) { // which quote leaves, as they mean nothing outside of a list
			q = "'" + strings.ReplaceAll(q, "'", "''") + "'"
		}
		out = append(out, q)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (t texts) set(dst, raw any) []Problem {
	var items []any
	switch v := raw.(type) {
	case []any:
		items = v
	case string:
		var err error
		if items, err = splitList(v); err != nil {
			return []Problem{{Message: fmt.Sprintf("%s is not possible: %v; it must be %s, as in %s or [%s]", show(raw), err, t.wants(), t.like, t.like)}}
		}
	default:
		return refuse(t, raw)
	}
	if len(items) < t.least || t.most > 0 && len(items) > t.most {
		return []Problem{{Message: fmt.Sprintf("a list of %d is not possible: it must be %s", len(items), t.wants())}}
	}
	out := make([]string, 0, len(items))
	var problems []Problem
	for i, item := range items {
		s := scalar(item)
		if err := t.check(s); err != nil {
			problems = append(problems, Problem{
				Key:     fmt.Sprintf("[%d]", i),
				Message: fmt.Sprintf("%s is not possible: %v", show(item), err),
			})
			continue
		}
		out = append(out, s)
	}
	*dst.(*[]string) = out
	return problems
}

// splitList reads a list that was given as one text: in YAML if it begins as a list does there, else the texts between commas.
func splitList(s string) (items []any, err error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "[") || strings.HasPrefix(s, "- ") {
		var v any
		err := yaml.Unmarshal([]byte(s), &v)
		items, ok := v.([]any)
		switch {
		case err != nil:
			return nil, fmt.Errorf("it begins as a list in YAML and is none (%s)", yamlMessage(err))
		case !ok:
			return nil, errors.New("it begins as a list in YAML and is none")
		}
		return items, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		if strings.HasPrefix(item, "'") || strings.HasPrefix(item, `"`) {
			return nil, errors.New("quotes belong to a list in brackets")
		}
		items = append(items, item)
	}
	return items, nil
}

// scalar writes a scalar as text; of lists and maps it makes something no rule accepts.
func scalar(raw any) string {
	switch v := raw.(type) {
	case string:
		return strings.TrimSpace(v)
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case nil:
		return ""
	case []any, map[string]any, map[any]any:
		return "\x00"
	}
	return fmt.Sprint(raw)
}

func refuse(r rule, raw any) []Problem {
	return []Problem{{Message: fmt.Sprintf("%s is not possible: it must be %s", show(raw), r.wants())}}
}

// refuseLike also says how such a value is written.
func refuseLike(r rule, raw any, like string) []Problem {
	return []Problem{{Message: fmt.Sprintf("%s is not possible: it must be %s, as in %s", show(raw), r.wants(), like)}}
}

// show quotes a value for a message.
func show(raw any) string {
	switch raw.(type) {
	case nil:
		return "no value"
	case []any:
		return "a list"
	case map[string]any, map[any]any:
		return "a section"
	}
	return strconv.Quote(scalar(raw))
}

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"TiB", tib},
	{"GiB", gib},
	{"MiB", mib},
	{"KiB", kib},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"T", tib},
	{"G", gib},
	{"M", mib},
	{"K", kib},
	{"B", 1},
}

// parseSize reads 64MiB, 1.5GiB, 10MB (decimal), 64M (binary) or plain bytes.
func parseSize(s string) (int64, error) {
	num, unit := s, int64(1)
	for _, u := range sizeUnits {
		if len(s) > len(u.name) && strings.EqualFold(s[len(s)-len(u.name):], u.name) {
			num, unit = strings.TrimSpace(s[:len(s)-len(u.name)]), u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n < 0 || n > math.MaxInt64/unit {
			return 0, strconv.ErrRange
		}
		return n * unit, nil
	}
	if strings.Trim(num, "0123456789.") != "" { // ParseFloat would take inf, 1e9, 0x1
		return 0, strconv.ErrSyntax
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f*float64(unit) >= math.MaxInt64 {
		return 0, strconv.ErrRange
	}
	return int64(f * float64(unit)), nil
}

// formatSize writes n in the largest binary unit that is exact.
func formatSize(n int64) string {
	if n == 0 {
		return "0"
	}
	for _, u := range sizeUnits[:4] {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

var dayPrefix = regexp.MustCompile(`^([0-9]+)([dw])`)

// ParseDuration is time.ParseDuration with weeks and days in front: 2w, 7d, 1d12h.
func ParseDuration(s string) (time.Duration, error) {
	rest, total := s, time.Duration(0)
	for {
		m := dayPrefix.FindStringSubmatch(rest)
		if m == nil {
			break
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		unit := day
		if m[2] == "w" {
			unit = 7 * day
		}
		if err != nil || n > int64((math.MaxInt64-total)/unit) {
			return 0, strconv.ErrRange
		}
		total += time.Duration(n) * unit
		rest = rest[len(m[0]):]
	}
	if rest == "" && s != "" {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, err
	}
	if d > math.MaxInt64-total {
		return 0, strconv.ErrRange
	}
	return total + d, nil
}

// FormatDuration writes d so that ParseDuration reads it: 0, 100ms, 1h30m, 7d.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	out := ""
	if days := d / day; days > 0 {
		out = strconv.FormatInt(int64(days), 10) + "d"
		d %= day
	}
	if d == 0 {
		return out
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return out + s
}

func notEmpty(s string) error {
	if s == "" {
		return errors.New("it is empty")
	}
	return nil
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func checkName(s string) error {
	if !namePattern.MatchString(s) {
		return errors.New("that is not a name")
	}
	return nil
}

func checkQueueName(s string) error {
	if !topic.ValidQueue(s) {
		return errors.New("that is not a queue name")
	}
	return nil
}

// checkFilter accepts an MQTT topic filter that names stored topics: no $share, $queue or other special name.
func checkFilter(s string) error {
	if topic.Own(s) {
		return errors.New("names that begin with $queue, $share, $s, $delayed, $exclusive, $v5, $edgemq or $SYS are not stored topics")
	}
	if err := topic.ValidFilter(s, topic.Limits{}); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "topic: "))
	}
	return nil
}

// retryDelay is what the delays of a queue may be.
var retryDelay = span{min: feed.LeastRetryDelay, max: feed.MostRetryDelay}

func checkRetryDelay(s string) error {
	if _, err := retryDelay.parse(s); err != nil {
		return errors.New("it must be " + retryDelay.wants())
	}
	return nil
}

func checkDeadLetter(s string) error {
	if s == "" {
		return nil
	}
	return checkQueueName(s)
}
