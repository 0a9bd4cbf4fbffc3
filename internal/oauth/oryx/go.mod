// What the OAuth library uses of github.com/ory/x, in place of that module; the
// go.mod of the project points here. The whole of it brings exporters of traces
// to three services with gRPC and Protocol Buffers, none of which is ever used:
// a fifth of the program, and as much of its memory.
module github.com/ory/x

go 1.26.0

require go.opentelemetry.io/otel/trace v1.21.0
