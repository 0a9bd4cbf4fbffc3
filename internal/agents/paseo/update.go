package paseo

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// AgentChange is a change of an agent; nil and empty fields change nothing.
type AgentChange struct {
	AgentID string
	Name    string
	// Labels are merged into those it has.
	Labels map[string]string
	ModeID string
	// Model and ThinkingOptionID: a pointer to "" takes the provider's default.
	Model, ThinkingOptionID *string
	Features                map[string]any
}

// UpdateAgent changes an agent in steps, in the order name and labels, mode,
// model, thinking, features by name. A refused step ends it with a [Rejected]
// that says what was applied. Repeating it is harmless.
func (c *Client) UpdateAgent(ctx context.Context, u AgentChange) error {
	var applied []string
	for _, step := range updateSteps(u) {
		err := c.act(ctx, step.request, step.fields)
		var no *Rejected
		if errors.As(err, &no) {
			no.Applied = applied
		}
		if err != nil {
			return err
		}
		applied = append(applied, step.name)
	}
	return nil
}

type updateStep struct {
	name, request string
	fields        fields
}

// updateSteps uses the single-field requests, which every version has.
func updateSteps(u AgentChange) []updateStep {
	var steps []updateStep
	add := func(name, request string, f fields) {
		f["agentId"] = u.AgentID
		steps = append(steps, updateStep{name, request, f})
	}
	if u.Name != "" || len(u.Labels) > 0 {
		f := fields{"name": omitZero(u.Name)}
		if len(u.Labels) > 0 {
			f["labels"] = u.Labels
		}
		add("name and labels", "update_agent_request", f)
	}
	if u.ModeID != "" {
		add("modeId", "set_agent_mode_request", fields{"modeId": u.ModeID})
	}
	if u.Model != nil {
		add("model", "set_agent_model_request", fields{"modelId": nullEmpty(*u.Model)})
	}
	if u.ThinkingOptionID != nil {
		add("thinkingOptionId", "set_agent_thinking_request", fields{"thinkingOptionId": nullEmpty(*u.ThinkingOptionID)})
	}
	for _, id := range slices.Sorted(maps.Keys(u.Features)) {
		add("features."+id, "set_agent_feature_request", fields{"featureId": id, "value": u.Features[id]})
	}
	return steps
}

func nullEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}
