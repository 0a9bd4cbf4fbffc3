// Command bench measures Agent Relay and prints its figures as one table.
//
// It owns the list of figures, how each is measured, and the bounds that the
// project sets itself. It promises that things that are compared are measured in
// turns in one run, with medians over rounds, so that a ratio holds on a machine
// that is slow or busy, and that what is measured is the built program where a
// user would meet it. It leaves building and installing to scripts/bench, and
// says what it found in words: it fails only when it could not measure.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

// bench is one run.
type bench struct {
	gateway string // path of the built program
	modules string // directory of the npm packages
	// commander is the directory of the npm packages with Desktop Commander.
	commander string
	dir       string // for state that goes with the run

	rounds  int           // of sides that take turns
	slice   time.Duration // of one side in one round
	history int           // messages of the long history
	pages   int           // pages of a history in one round
	calls   int           // calls one after the other in one round
	burst   int           // calls between two looks at an idle gateway

	idler *idler
}

// sections are the parts of a run, in their order.
var sections = []struct {
	name string
	run  func(context.Context, *bench) ([]row, error)
}{
	{"idle", idleBegin},
	{"sends", durableSends},
	{"throughput", throughput},
	{"latency", latency},
	{"agents", house},
	{"collector", collector},
	{"idle", idleAgain},
	{"reads", reads},
	{"history", longHistory},
	{"starts", starts},
	{"bursts", bursts},
	{"idle", idleAgain},
	{"direct search", searches},
	{"direct commands", commandStarts},
	{"direct edits", misses},
	{"direct tails", tails},
	{"direct transfers", exports},
	{"ssh reads", smallReads},
	{"ssh commands", farCommands},
	{"ssh processes", helpers},
	{"ssh transfers", farExports},
	{"ssh hosts", deadHosts},
	{"dispatch", dispatched},
	{"idle", idleEnd},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 1 && args[0] == "bare" {
		return serveBare()
	}
	if len(args) == 1 && args[0] == "stdio" {
		return serveStdio(ctx)
	}
	if len(args) == 2 && args[0] == "files" {
		return serveFiles(args[1])
	}
	b := &bench{rounds: 7, slice: time.Second, history: 1_000_000, pages: 500, calls: 300, burst: 10_000}
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.StringVar(&b.gateway, "gateway", "", "path of the built gateway")
	f.StringVar(&b.modules, "modules", "", "directory of the npm packages, with mcp-proxy in it")
	f.StringVar(&b.commander, "commander", "", "directory of the npm packages, with Desktop Commander in it")
	doc := f.String("doc", "", "also put the table into this document")
	only := f.String("only", "", "run the sections whose name matches")
	quick := f.Bool("quick", false, "measure too little for figures that count, to try the benchmarks themselves")
	_ = f.Parse(args) // it exits
	if *quick {
		b.rounds, b.slice, b.history, b.pages, b.calls, b.burst = 3, 200*time.Millisecond, 20_000, 50, 50, 640
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "relay-bench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	rows, err := b.measure(ctx, chosen)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	table(&out, rows)
	fmt.Printf("%s", out.Bytes())
	if *doc != "" {
		return replaceTable(*doc, out.Bytes())
	}
	return nil
}

// measure runs the chosen sections and says on standard error how far it is.
func (b *bench) measure(ctx context.Context, chosen *regexp.Regexp) ([]row, error) {
	var all []row
	for _, s := range sections {
		if !chosen.MatchString(s.name) {
			continue
		}
		begun := time.Now()
		fmt.Fprintf(os.Stderr, "%s ...", s.name)
		rows, err := s.run(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, " %.1f s\n", time.Since(begun).Seconds())
		all = append(all, rows...)
	}
	return all, nil
}
