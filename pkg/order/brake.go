package order

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"time"
)

// Mode is what the closing of due orders does. The names are stored.
type Mode string

const (
	ModeEnforce Mode = "enforce" // it closes
	ModeShadow  Mode = "shadow"  // it notes what it would close and changes nothing
	ModeOff     Mode = "off"     // it does nothing; what is due is closed once it is on again
)

// Brakes stop the closing of due orders. They live in the database and are read, locked against change, by each
// closing transaction (I15).
type Brakes struct {
	Mode Mode
	// Percent of users whose orders are closed in ModeEnforce; the others are treated as in ModeShadow. 100 is all.
	Percent int
	// ByType overrides Percent for business types.
	ByType map[string]int
	// Tripped is why the mass-cancel breaker has stopped closing; "" if it has not.
	Tripped   string
	TrippedAt time.Time
	Normal    float64   // while tripped: the ratio of paid attempts at which payments are back
	ResumedAt time.Time // when closing went on after the last trip: the breaker judges by what was started since
	// Version counts the changes. A change that names another one is refused.
	Version int
}

// Braking is what the brakes make of one due order.
type Braking uint8

const (
	Go     Braking = iota // close it
	Record                // note that it would have been closed
	Wait                  // leave it as it is
)

// Off reports whether no order at all is closed.
func (b Brakes) Off() bool { return b.Mode == ModeOff || b.Tripped != "" }

// Notes reports whether due orders are noted, all or some, instead of closed.
func (b Brakes) Notes() bool { return !b.Off() && !b.Full() }

// On is what the brakes make of a due order. A user is in or out for good, and in at any higher percentage.
func (b Brakes) On(o Order) Braking {
	switch {
	case b.Off():
		return Wait
	case b.Mode == ModeShadow:
		return Record
	}
	percent, ok := b.ByType[o.BizType]
	if !ok {
		percent = b.Percent
	}
	h := fnv.New32a()
	h.Write([]byte(o.UserID))
	if int(h.Sum32()%100) < percent {
		return Go
	}
	return Record
}

func (b Brakes) refusals() (bad []Field) {
	if b.Mode != ModeEnforce && b.Mode != ModeShadow && b.Mode != ModeOff {
		bad = append(bad, Field{"mode", "enforce, shadow or off"})
	}
	if b.Percent < 0 || b.Percent > 100 {
		bad = append(bad, Field{"percent", "0 to 100"})
	}
	for biz, percent := range b.ByType {
		bad = append(bad, checkText("by_type", biz)...)
		if percent < 0 || percent > 100 {
			bad = append(bad, Field{fmt.Sprintf("by_type[%s]", biz), "0 to 100"})
		}
	}
	return bad
}

// BrakeChange asks for the brakes to be changed. What it does not say stays as it is.
type BrakeChange struct {
	Mode      Mode
	Percent   *int
	ByType    map[string]int // only for these business types
	ByDefault []string       // business types that Percent holds for again
	Version   int            // the one that was read: a Conflict if there is another by now. 0 asks nothing
	Resume    bool           // lets closing go on after the breaker has stopped it; else Tripped stays as it is
	Act
}

// Apply makes the change.
func (c BrakeChange) Apply(b Brakes) (Brakes, error) {
	if c.Version != 0 && c.Version != b.Version {
		return b, Errorf(Conflict, "brakes_changed", "the brakes have version %d by now, not %d", b.Version, c.Version).
			WithHint("Read them again.")
	}
	b = c.named(b)
	if c.Resume {
		b = b.Resumed()
	}
	return b, nil
}

// named are the brakes b with what the change names.
func (c BrakeChange) named(b Brakes) Brakes {
	b.Mode = cmp.Or(c.Mode, b.Mode)
	if c.Percent != nil {
		b.Percent = *c.Percent
	}
	byType := map[string]int{}
	maps.Copy(byType, b.ByType)
	maps.Copy(byType, c.ByType)
	for _, biz := range c.ByDefault {
		delete(byType, biz)
	}
	b.ByType = byType
	return b
}

// Resumed are the brakes after the breaker has let go.
func (b Brakes) Resumed() Brakes {
	b.Tripped, b.TrippedAt, b.Normal = "", time.Time{}, 0
	return b
}

// Validate checks brakes that somebody asks for, and that they say why.
func (c BrakeChange) Validate() error {
	bad := append(c.named(Brakes{Mode: ModeEnforce}).refusals(), c.check()...)
	if c.Version < 0 {
		bad = append(bad, Field{"version", "the version that was read, or nothing"})
	}
	return invalid(bad)
}

// Full reports whether every due order is closed: there is nothing that keeps one.
func (b Brakes) Full() bool {
	for _, percent := range b.ByType {
		if percent < 100 {
			return false
		}
	}
	return b.Mode == ModeEnforce && b.Percent >= 100 && b.Tripped == ""
}
