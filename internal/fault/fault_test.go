package fault_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentrelay/internal/fault"
)

var gone = fault.Kind{Code: "gone", Hint: "Look elsewhere."}

func TestErrorIsItsKindThroughWrapping(t *testing.T) {
	err := fmt.Errorf("reading: %w", gone.Newf("no %s here", "peer"))
	if !errors.Is(err, gone) {
		t.Fatal("wrapped error is not its kind")
	}
	if errors.Is(err, fault.Internal) {
		t.Fatal("error is another kind too")
	}
	if got := fault.From(err); got.Message != "no peer here" || got.Hint != "Look elsewhere." {
		t.Fatalf("From = %+v", got)
	}
}

func TestFromHidesForeignErrors(t *testing.T) {
	cause := errors.New("open /home/owner/secret: denied")
	got := fault.From(cause)
	if got.Code != "internal_error" || strings.Contains(got.Message, "secret") {
		t.Fatalf("a foreign error leaked to the caller: %+v", got)
	}
	if !errors.Is(got, cause) {
		t.Fatal("the log lost the cause")
	}
	if fault.From(nil) != nil {
		t.Fatal("From(nil) is not nil")
	}
}

func TestCopiesDoNotChangeTheOriginal(t *testing.T) {
	e := gone.New("first")
	_ = e.WithHint("other").Because(errors.New("x"))
	if e.Hint != "Look elsewhere." || e.Unwrap() != nil {
		t.Fatalf("original changed: %+v", e)
	}
}
