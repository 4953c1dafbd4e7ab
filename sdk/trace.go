package sdk

import "context"

type traceKey struct{}

// ContextWithTraceID returns a context whose messages carry this TraceId header, unless they have one of their own. With
// OpenTelemetry it is the traceparent of the current span.
func ContextWithTraceID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, traceKey{}, id)
}

// TraceID returns the trace id of a context, "" if it has none. A PushConsumer's handler is given a context with
// the TraceId of its message, so that what it sends belongs to the same trace.
func TraceID(ctx context.Context) string {
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}
