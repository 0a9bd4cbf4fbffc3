// Package docs holds the documentation and the tests that keep it true.
//
// It owns no code: the tests beside the pages check that docs/errors.md lists
// exactly the refusals the packages declare, and that the layout rules of
// docs/architecture.md hold in the source. Run go test ./docs -update to write
// docs/errors.md anew. What the pages say in prose is left to their readers.
package docs
