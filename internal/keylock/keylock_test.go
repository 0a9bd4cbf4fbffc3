package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestOneHolderAKey(t *testing.T) {
	var l Locks[int]
	var wg sync.WaitGroup
	counts := [3]int{}
	for i := range 300 {
		wg.Go(func() {
			release, err := l.Acquire(t.Context(), i%3)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			counts[i%3]++ // the race detector looks on
		})
	}
	wg.Wait()
	if counts != [3]int{100, 100, 100} || len(l.held) != 0 {
		t.Errorf("%v, %d locks left", counts, len(l.held))
	}
}

func TestWaitingEnds(t *testing.T) {
	var l Locks[string]
	release, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if _, err := l.Acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that ended: %v", err)
	}
	if _, ok := l.Try("a"); ok {
		t.Error("a lock that is held was taken")
	}
	other, ok := l.Try("b")
	if !ok {
		t.Fatal("a free lock was not taken")
	}
	other()
	if again, err := l.Acquire(ctx, "b"); err != nil {
		t.Errorf("a free lock after the end of the context: %v", err)
	} else {
		again()
	}
	release()
	if release, ok := l.Try("a"); !ok {
		t.Error("a lock that was let go was not taken")
	} else {
		release()
	}
	if len(l.held) != 0 {
		t.Errorf("%d locks left", len(l.held))
	}
}
