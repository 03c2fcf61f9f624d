package order

// Check is one statement about stored data that must always hold, looked at by query.
type Check struct {
	Invariant  string // "I1" … "I9"
	Name       string // what must hold, as a sentence
	Checked    int64  // rows looked at
	Violations int64  // rows of them for which it does not hold
	Example    string // one that violates: an order number, a resource, a message key; "" if none
}

// Holds reports whether nothing violates the statement.
func (c Check) Holds() bool { return c.Violations == 0 }
