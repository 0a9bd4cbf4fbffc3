// Package docs holds the documentation and the tests that keep it true.
//
// It owns no code: the tests beside the pages check that docs/errors.md lists
// exactly the refusals the packages declare and docs/config.md the keys of the config,
// that links lead somewhere, and that the layout rules and the package map of
// docs/architecture.md hold in the source. Run go test ./docs -update to write
// docs/errors.md and docs/config.md anew. What the pages say in prose is left to their readers.
package docs
