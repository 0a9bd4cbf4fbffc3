package callerid_test

import (
	"strings"
	"testing"

	"agentrelay/internal/callerid"
)

func TestForm(t *testing.T) {
	for _, id := range []string{"a", "7", "A.b_c:d-e", strings.Repeat("x", 128), "123e4567-e89b-42d3-a456-426614174000"} {
		if !callerid.Valid(id) {
			t.Errorf("%q is refused", id)
		}
	}
	for _, id := range []string{"", "-a", ".a", ":", "_", "a b", "a/b", "a\n", "a\x00", "\u00e4", strings.Repeat("x", 129)} {
		if callerid.Valid(id) {
			t.Errorf("%q is taken", id)
		}
	}
}
