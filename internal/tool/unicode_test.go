package tool

import "testing"

func TestCutCharacter(t *testing.T) {
	for json, want := range map[string]bool{
		`"plain \n A \\ud800 ü"`:        false,
		`"\ud83d\ude00"`:                false, // a whole emoji
		`"\uD83D\uDE00\ud83d\ude00"`:    false,
		`"\ud83d"`:                      true,
		`"\ude00"`:                      true,
		`"\ud83dx\ude00"`:               true,
		`"\ud83d\\ude00"`:               true,
		`"\ud83d\u0041"`:                true,
		`"\ude00\ud83d"`:                true,
		`{"text":"ok","more":"\ud83d"}`: true,
		`"\\\ud83d"`:                    true,
		`"\\\\ud83d"`:                   false,
	} {
		if got := cutCharacter([]byte(json)); got != want {
			t.Errorf("cutCharacter(%s) = %v, want %v", json, got, want)
		}
	}
}
