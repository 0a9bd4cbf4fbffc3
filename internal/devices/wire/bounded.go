package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// expansion counts the parts of a schema with every reference written out.
type expansion struct {
	root    any
	sizes   map[string]int  // of references, once known
	running map[string]bool // references being written out
}

var (
	errRecursive = errors.New("the schema refers to itself")
	errExpanded  = fmt.Errorf("the schema has more than %d parts when its references are written out", MaxExpanded)
)

func bounded(raw json.RawMessage) error {
	var root any
	if err := json.Unmarshal(raw, &root); err != nil {
		return errors.New("the schema is not JSON")
	}
	if _, ok := root.(map[string]any); !ok {
		return errors.New("the schema must be an object")
	}
	_, err := (&expansion{root, map[string]int{}, map[string]bool{}}).size(root)
	return err
}

// literal are the keywords whose values are data, no schemas.
var literal = map[string]bool{"default": true, "const": true, "enum": true, "examples": true}

func (e *expansion) size(node any) (int, error) {
	total := 1
	add := func(child any) error {
		n, err := e.size(child)
		if total += n; err == nil && total > MaxExpanded {
			err = errExpanded
		}
		return err
	}
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			if err := add(child); err != nil {
				return 0, err
			}
		}
	case map[string]any:
		for name, child := range node {
			if literal[name] {
				continue
			}
			if name == "$ref" || name == "$dynamicRef" || name == "$recursiveRef" {
				if ref, ok := child.(string); ok {
					n, err := e.reference(ref)
					if total += n; err == nil && total > MaxExpanded {
						err = errExpanded
					}
					if err != nil {
						return 0, err
					}
					continue
				}
			}
			if err := add(child); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

// reference is the size of what a reference names.
func (e *expansion) reference(ref string) (int, error) {
	if n, known := e.sizes[ref]; known {
		return n, nil
	}
	if e.running[ref] || ref == "#" {
		return 0, errRecursive
	}
	target, ok := e.find(ref)
	if !ok {
		return 0, errors.New("the schema has a reference to something outside of it")
	}
	e.running[ref] = true
	n, err := e.size(target)
	delete(e.running, ref)
	if err == nil {
		e.sizes[ref] = n
	}
	return n, err
}

// find follows a JSON pointer. Anchors are not followed.
func (e *expansion) find(ref string) (any, bool) {
	pointer, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, false
	}
	node := e.root
	for part := range strings.SplitSeq(pointer, "/") {
		object, ok := node.(map[string]any)
		if !ok {
			return nil, false
		}
		if node, ok = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]; !ok {
			return nil, false
		}
	}
	return node, true
}
