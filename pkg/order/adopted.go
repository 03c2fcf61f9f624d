package order

import "time"

// Adopted is something that lapses but whose row belongs to somebody else: an order of a shop's own table, a coupon, a
// red packet, a reservation, a task. Lapse keeps its deadline; its owner is called then, and closes it.
type Adopted struct {
	Kind     string    // what it is, in its owner's words
	Ref      string    // its owner's name for it, unique within Kind
	Deadline time.Time // by the clock of the database that both share
}

// AdoptedType is Message.Type of the time-out rows of adopted items.
const AdoptedType = "item"

// AdoptedShard is the lease of whoever looks through what owners say is overdue. It is no shard of t_order.
const AdoptedShard = 128

// No is its number, unique among all order numbers: those that are derived begin with another letter.
func (a Adopted) No() string { return "I" + DeriveNumber(a.Kind, a.Ref)[1:] }

// Validate checks an item and returns it as it is stored: a fraction of a millisecond makes its deadline later (I2).
func (a Adopted) Validate() (Adopted, error) {
	bad := append(checkText("kind", a.Kind), checkText("ref", a.Ref)...)
	if !validDeadline(a.Deadline) {
		bad = append(bad, Field{"deadline", "an instant of the years 2000 to 8999"})
	}
	a.Deadline = wholeMillisecond(a.Deadline)
	return a, invalid(bad)
}

func validDeadline(t time.Time) bool { return t.UTC().Year() >= 2000 && t.Before(Never) }

// wholeMillisecond is t in UTC, or the next whole millisecond after it.
func wholeMillisecond(t time.Time) time.Time {
	return t.UTC().Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}

// Ripened is what became of time-out messages whose numbers are no order's.
type Ripened struct {
	Ripe   []string // due: their owner is to be called, or is being called already
	Early  []string // not due yet
	Locked []string // another transaction is changing them; its end decides
}

// Ripe is an adopted item that is due, as it is handed to whoever calls its owner.
type Ripe struct {
	Adopted
	Message Message // its time-out row, leased (I10)
}

// Word is what an owner says about an item that is due.
type Word string

const (
	WordClosed Word = "closed" // it was open and due, and the owner has closed it now
	WordFinal  Word = "final"  // it had ended before: paid, closed, or unknown to its owner
	WordLater  Word = "later"  // it is open and not due: its deadline was moved
)

// Answer is an owner's explicit answer. Deadline is set with WordLater.
type Answer struct {
	Word     Word
	Deadline time.Time
}

// Validate refuses what is no explicit answer, and returns one as it is stored.
func (a Answer) Validate() (Answer, error) {
	switch {
	case a.Word == WordClosed, a.Word == WordFinal:
		return Answer{Word: a.Word}, nil
	case a.Word == WordLater && validDeadline(a.Deadline):
		a.Deadline = wholeMillisecond(a.Deadline)
		return a, nil
	}
	return Answer{}, Errorf(Unavailable, "no_explicit_answer", "neither closed, nor final, nor later with a deadline")
}

// Asked is an item whose owner was called, and what came of it.
type Asked struct {
	Ripe
	Answer Answer
	Failed string        // why there is no answer; "" if there is one
	Wait   time.Duration // until the owner is called again, where it has to be
}
