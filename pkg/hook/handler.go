package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/signature"
)

// Owner closes items and lists those that are open.
type Owner interface {
	// Close closes an item, in one conditional update, if it is open and its own deadline has passed, and says how it
	// stands: calls are repeated. An error means that this is not known, and asks for another call.
	Close(ctx context.Context, a order.Adopted) (order.Answer, error)
	// Due lists up to limit open items whose deadline is before a time, in an order that does not change, after a cursor
	// ("" at first), and returns the cursor to go on with, "" at the end.
	Due(ctx context.Context, before time.Time, after string, limit int) (items []order.Adopted, next string, err error)
}

const (
	maxCall     = 64 << 10 // bytes of a call's body
	maxPage     = 1000
	callMayBeBy = 5 * time.Minute // how far a call's time stamp may be from now, either way
)

// Handler serves an owner's side: close and due, below whatever path it is mounted at with http.StripPrefix. Calls that
// were not signed with the secret within five minutes are refused. It panics if the secret is shorter than
// signature.MinSecret, as anybody could sign with one.
func Handler(secret string, owner Owner) http.Handler {
	if err := checkSecret(secret); err != nil {
		panic(err)
	}
	s := served{secret, owner}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /close", s.close)
	mux.HandleFunc("GET /due", s.due)
	return mux
}

type served struct {
	secret string
	owner  Owner
}

func (s served) close(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCall))
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	if !s.signed(w, r, body) {
		return
	}
	var it item
	if err := json.Unmarshal(body, &it); err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	said, err := s.owner.Close(r.Context(), order.Adopted(it))
	if err == nil {
		said, err = said.Validate()
	}
	reply(w, answer{said.Word, said.Deadline}, err)
}

func (s served) due(w http.ResponseWriter, r *http.Request) {
	if !s.signed(w, r, []byte(r.URL.RawQuery)) {
		return
	}
	query := r.URL.Query()
	before, err := time.Parse(time.RFC3339, query.Get("before"))
	limit, lerr := strconv.Atoi(query.Get("limit"))
	if err != nil || lerr != nil || limit < 1 || limit > maxPage {
		refuse(w, http.StatusBadRequest, fmt.Errorf("before (RFC 3339) and a limit of 1 to %d are needed", maxPage))
		return
	}
	found, next, err := s.owner.Due(r.Context(), before, query.Get("after"), limit)
	items := make([]item, len(found))
	for i, a := range found {
		items[i] = item(a)
	}
	reply(w, list{&items, next}, err)
}

// signed refuses a call that no holder of the secret has signed lately.
func (s served) signed(w http.ResponseWriter, r *http.Request, content []byte) bool {
	timestamp, err := strconv.ParseInt(r.Header.Get(signature.TimestampHeader), 10, 64)
	switch {
	case err != nil, !signature.Valid(r.Header.Get(signature.Header), timestamp, content, s.secret):
		refuse(w, http.StatusUnauthorized, errors.New("not signed with the secret of this hook"))
		return false
	case time.Since(time.Unix(timestamp, 0)).Abs() > callMayBeBy:
		refuse(w, http.StatusUnauthorized, fmt.Errorf("signed more than %v from now", callMayBeBy))
		return false
	}
	return true
}

// reply answers with v, or says that there is no answer.
func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a caller that went away calls again
}

// refuse says why there is no answer; whoever holds the secret may read it in Lapse's log.
func refuse(w http.ResponseWriter, status int, err error) { http.Error(w, err.Error(), status) }
