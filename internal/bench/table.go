package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// The verdicts of a row with a bound.
const (
	pass = "pass"
	fail = "FAIL"
)

// row is a line of the table.
type row struct {
	name, measured, against, ratio, bound, verdict string
}

// ratioed is a row whose figure is a ratio to another that was measured in the
// same rounds.
func ratioed(name, measured, against string, ratio float64) row {
	return row{name: name, measured: measured, against: against, ratio: fmt.Sprintf("%.2f", ratio)}
}

// atLeast gives a row its bound; text says it with its unit.
func (r row) atLeast(figure, bound float64, text string) row {
	return r.bounded("at least "+text, figure >= bound)
}

// atMost gives a row its bound; text says it with its unit.
func (r row) atMost(figure, bound float64, text string) row {
	return r.bounded("at most "+text, figure <= bound)
}

func (r row) bounded(text string, holds bool) row {
	r.bound, r.verdict = text, fail
	if holds {
		r.verdict = pass
	}
	return r
}

func perSecond(v float64) string { return fmt.Sprintf("%.0f /s", v) }

func micro(seconds float64) string { return fmt.Sprintf("%.0f µs", seconds*1e6) }

func milli(seconds float64) string { return fmt.Sprintf("%.2f ms", seconds*1e3) }

func megabytes(bytes float64) string { return fmt.Sprintf("%.1f MB", bytes/1e6) }

// table writes rows as Markdown that is aligned for a terminal too, and above
// them where and when they were measured.
func table(w io.Writer, rows []row) {
	fmt.Fprintf(w, "%s, measured in %s.\n\n", time.Now().UTC().Format("2006-01-02"), machine())
	cells := [][]string{{"figure", "measured", "compared with", "ratio", "bound", ""}}
	for _, r := range rows {
		cells = append(cells, []string{r.name, r.measured, r.against, r.ratio, r.bound, r.verdict})
	}
	width := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, c := range line {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	for n, line := range cells {
		for i, c := range line {
			fmt.Fprintf(w, "| %s%s ", c, strings.Repeat(" ", width[i]-len([]rune(c))))
		}
		fmt.Fprintln(w, "|")
		if n > 0 {
			continue
		}
		for _, n := range width {
			fmt.Fprintf(w, "|%s", strings.Repeat("-", n+2))
		}
		fmt.Fprintln(w, "|")
	}
}

// machine is what the figures depend on.
func machine() string {
	parts := []string{fmt.Sprintf("%d processors", runtime.NumCPU())}
	if model := processor(); model != "" {
		parts[0] += " (" + model + ")"
	}
	parts = append(parts, runtime.GOOS+"/"+runtime.GOARCH, runtime.Version())
	if out, err := exec.Command("uptime").Output(); err == nil {
		if _, load, ok := bytes.Cut(out, []byte("load average")); ok {
			parts = append(parts, "load average "+strings.Trim(string(load), "s: \n"))
		}
	}
	return strings.Join(parts, ", ")
}

// processor is the name that the system gives the processor, "" when it has none.
func processor() string {
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	out, _ := exec.Command("sysctl", "-n", "machdep.cpu.brand_string").Output()
	return strings.TrimSpace(string(out))
}

// The lines in a document between which the table stands.
const (
	tableBegins = "<!-- The table of scripts/bench begins here. -->\n"
	tableEnds   = "<!-- It ends here. -->\n"
)

// replaceTable puts a new table into a document.
func replaceTable(file string, table []byte) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, began := bytes.Cut(raw, []byte(tableBegins))
	_, tail, ended := bytes.Cut(rest, []byte(tableEnds))
	if !began || !ended {
		return fmt.Errorf("%s has no place for the table: the lines\n%s%s", file, tableBegins, tableEnds)
	}
	return os.WriteFile(file, bytes.Join([][]byte{head, []byte(tableBegins), table, []byte(tableEnds), tail}, nil), 0o644)
}
