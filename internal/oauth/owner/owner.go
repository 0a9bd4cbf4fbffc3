// Package owner knows the one person who may consent, by a password, and who
// may try it.
//
// It owns the password file, the pauses after wrong tries, the browsers in which
// the owner stays signed in, and the tokens that tie a form to a browser. It
// promises that a password is never kept where it can be read back by us (older
// files that hold it in the clear excepted), that guessing is slow over restarts
// and over many addresses while it keeps the owner waiting for 30 seconds at
// most, and that a session can't be made from what the database holds. It leaves
// pages, the audit log and the order of a sign-in to internal/oauth.
package owner
