// Package main is the double of the Paseo daemon as a process of its own, for
// tests that kill it. It keeps its state in a directory, so that a new process
// continues where a killed one stopped, with all that a real daemon forgets.
//
// It prints "listening ADDRESS" when it takes connections, stops as the daemon
// does at SIGTERM, and kills itself at an ordered crash. Faults, as JSON lines of
// paseotest.Fault, are read from standard input as long as that is open.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"agentrelay/internal/agents/paseo/paseotest"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := flag.String("dir", "", "directory of the state; it must exist")
	listen := flag.String("listen", "127.0.0.1:0", "address, or path of a unix socket")
	version := flag.String("version", paseotest.V10, "version to behave as")
	flag.Parse()
	d, err := paseotest.New(paseotest.Options{
		Version: *version, Dir: *dir, Password: os.Getenv("PASEO_PASSWORD"),
		OnCrash: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} },
	})
	if err != nil {
		return err
	}
	network := "tcp"
	if strings.HasPrefix(*listen, "/") {
		network = "unix"
		_ = os.Remove(*listen)
	}
	l, err := net.Listen(network, *listen)
	if err != nil {
		return err
	}
	if err := d.Serve(l); err != nil {
		return err
	}
	fmt.Println("listening", l.Addr())
	go orders(d)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	d.Terminate()
	return nil
}

// orders reads faults until standard input ends.
func orders(d *paseotest.Daemon) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var f paseotest.Fault
		if json.Unmarshal(lines.Bytes(), &f) != nil {
			fmt.Println("bad fault")
			continue
		}
		d.Order(f)
		fmt.Println("ordered", f.Act)
	}
}
