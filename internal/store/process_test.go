package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// runChild is this test binary as a process of its own on a state directory:
//
//	hold   opens it, prints "open" and stays
//	open   opens it, and prints the refusal
//	write  writes numbered rows from 16 callers, printing each id once it is
//	       acknowledged
func runChild(spec string) int {
	mode, dir, _ := strings.Cut(spec, ":")
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if err := makeTable(s); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	switch mode {
	case "open":
		return 0
	case "hold":
		select {}
	}

	var max int
	if err := Read(context.Background(), s, func(r *Reader) error {
		return r.QueryRow(`SELECT coalesce(max(id), 0) FROM t`).Scan(&max)
	}); err != nil {
		fmt.Println(err)
		return 1
	}
	ids, printing := make(chan int), sync.Mutex{}
	for range 16 {
		go func() {
			for id := range ids {
				if err := Exec(context.Background(), s, insert(id)); err != nil {
					panic(err)
				}
				printing.Lock()
				fmt.Println(id)
				printing.Unlock()
			}
		}()
	}
	for id := max + 1; ; id++ {
		ids <- id
	}
}

// child starts this binary as another process and returns when it has opened
// the directory.
func child(t *testing.T, mode, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+mode+":"+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("the child said %q", lines.Text())
	}
	return cmd, lines
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir() + "/state"
	holder, _ := child(t, "hold", dir)
	before := list(t, dir)

	start := time.Now()
	second := exec.Command(os.Args[0])
	second.Env = append(os.Environ(), childEnv+"=open:"+dir)
	out, err := second.CombinedOutput()
	took := time.Since(start)
	if err == nil {
		t.Fatal("the second process opened the directory")
	}
	if want := fmt.Sprintf("in use by process %d", holder.Process.Pid); !strings.Contains(string(out), want) {
		t.Errorf("it said %q, want %q", out, want)
	}
	if took > time.Second {
		t.Errorf("the refusal took %v", took)
	}
	if _, err := Open(context.Background(), Options{Dir: dir}); err == nil {
		t.Fatal("this process opened the directory too")
	} else if locked := new(LockedError); !errors.As(err, &locked) || locked.PID != holder.Process.Pid {
		t.Errorf("got %v", err)
	}
	if after := list(t, dir); after != before {
		t.Errorf("the refused processes changed\n%s to\n%s", before, after)
	}

	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	start = time.Now()
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Fatalf("after SIGKILL of the holder: %v", err)
	}
	defer s.Close()
	if took := time.Since(start); took > time.Second {
		t.Errorf("opening after SIGKILL took %v", took)
	}
	if err := Exec(context.Background(), s, insert(1)); err != nil {
		t.Error(err)
	}
}

// list is the name, size and time of every file in dir.
func list(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, e.Name(), info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}

// Answered means stored: a process that is killed at any instant has lost
// nothing that it acknowledged. AGENT_RELAY_CRASH_ROUNDS sets the number of kills.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir() + "/state"
	acknowledged := map[int]bool{}
	for round := range rounds(t, "AGENT_RELAY_CRASH_ROUNDS", 20) {
		cmd, lines := child(t, "write", dir)
		kill := time.AfterFunc(time.Duration(rand.IntN(80_000))*time.Microsecond, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
		for lines.Scan() {
			id, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatalf("the child said %q", lines.Text())
			}
			acknowledged[id] = true
		}
		kill.Stop()
		_ = cmd.Wait()

		s := open(t, dir)
		ids := stored(t, s)
		for id := range acknowledged {
			if !ids[id] {
				t.Fatalf("round %d: row %d was acknowledged and is lost", round, id)
			}
		}
		var check string
		if err := Read(context.Background(), s, func(r *Reader) error { return r.QueryRow(`PRAGMA integrity_check`).Scan(&check) }); err != nil || check != "ok" {
			t.Fatalf("round %d: integrity %q, %v", round, check, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was ever acknowledged: the test shows nothing")
	}
	t.Logf("%d rows acknowledged in %s", len(acknowledged), filepath.Base(dir))
}
