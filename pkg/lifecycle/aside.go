package lifecycle

import (
	"context"
	"encoding/json"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// QuarantineStore keeps what a person has to look at.
type QuarantineStore interface {
	// Quarantine keeps an input (the newest 10,000), and says whether it is new: the same one is kept once.
	Quarantine(ctx context.Context, q order.Quarantined) (fresh bool, err error)
}

// aside sets things aside for a person.
type aside struct {
	store   QuarantineStore
	metrics *Metrics
	log     *zap.Logger
}

// put sets an input aside, and tells of it the first time.
func (a aside) put(ctx context.Context, source, orderNo string, cause error, body []byte) error {
	fresh, err := a.store.Quarantine(ctx, order.Quarantined{Source: source, OrderNo: orderNo, Reason: cause.Error(), Body: body})
	if err != nil {
		a.metrics.Retries.WithLabelValues("quarantine").Inc()
		a.log.Warn("could not be set aside", zap.String("source", source), zap.String("order_no", orderNo), zap.Error(err), zap.NamedError("cause", cause))
		return err
	}
	if fresh {
		a.metrics.Quarantined.WithLabelValues(source).Inc()
		a.log.Error("set aside", zap.String("source", source), zap.String("order_no", orderNo), zap.Error(cause))
	}
	return nil
}

// payment sets a refused payment aside, since money may be behind it.
func (a aside) payment(ctx context.Context, p order.Payment, refusal error) error {
	body, err := json.Marshal(p)
	if err != nil {
		body = []byte(err.Error()) // a time out of range, say; the refusal says more
	}
	return a.put(ctx, "payment", p.OrderNo, refusal, body)
}
