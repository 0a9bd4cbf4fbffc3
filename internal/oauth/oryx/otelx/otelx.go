// Package otelx stands in for the package of that name in github.com/ory/x.
//
// It owns the one function of it that github.com/ory/fosite calls. It promises
// to end what fosite began: traces are recorded nowhere in this project, so
// there is nothing else to do. It leaves errors and panics to pass by.
package otelx

import "go.opentelemetry.io/otel/trace"

// End ends a span, whatever the error.
func End(span trace.Span, _ *error) { span.End() }
