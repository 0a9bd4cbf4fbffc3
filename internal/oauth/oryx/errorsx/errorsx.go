// Package errorsx stands in for the package of that name in github.com/ory/x.
//
// It owns the names that github.com/ory/fosite uses of it, with the meaning that
// fosite gives them. It promises that an error comes through unchanged, so that
// errors.Is and errors.As see what they would see; stack traces, which nothing
// here prints, are left out. It leaves the errors themselves to fosite.
package errorsx

// WithStack returns err.
func WithStack(err error) error { return err }

// Cause follows the Cause methods of err down to the error that has none.
func Cause(err error) error {
	for err != nil {
		wrapped, ok := err.(interface{ Cause() error })
		if !ok || wrapped.Cause() == nil {
			return err
		}
		err = wrapped.Cause()
	}
	return nil
}

// The parts that an error may have for the answer to its client.
type (
	// StatusCodeCarrier has an HTTP status.
	StatusCodeCarrier interface{ StatusCode() int }
	// RequestIDCarrier has the id of its request.
	RequestIDCarrier interface{ RequestID() string }
	// ReasonCarrier says why.
	ReasonCarrier interface{ Reason() string }
	// DebugCarrier says what only the owner should know.
	DebugCarrier interface{ Debug() string }
	// StatusCarrier has the text of its status.
	StatusCarrier interface{ Status() string }
	// DetailsCarrier has anything else.
	DetailsCarrier interface{ Details() map[string]any }
)
