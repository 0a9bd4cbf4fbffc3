// Package plugins holds the reference plugins, as files that programs can write out.
//
// It owns run, read-file, write-file and the job-* plugins, which are written in
// Python 3 and read nothing but their standard input. It promises that they work by
// the contract of internal/device/plugins alone, so that they are examples for
// others. Which of them are installed where is left to the owner of a device.
package plugins

import "embed"

// Files has a directory for each plugin, and joblib.py beside them.
//
//go:embed joblib.py */manifest.json */*.py
var Files embed.FS
