//go:build !race

package mailbox_test

const raced = false
