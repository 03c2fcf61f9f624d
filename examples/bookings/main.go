// Bookings is a small shop with a table of its own, whose unpaid bookings lapse by Lapse. README.md says how to run it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"lapse/pkg/hook"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal("bookings: ", err)
	}
}

func run(ctx context.Context) error {
	driver := flag.String("driver", "sqlite", "`name` of the database driver: sqlite or mysql")
	dsn := flag.String("dsn", "", "where the database is, which has Lapse's tables, too")
	addr := flag.String("listen", "127.0.0.1:8090", "`address` to listen on")
	flag.Parse()
	secret := os.Getenv("BOOKINGS_HOOK_SECRET")
	if *dsn == "" || secret == "" {
		return errors.New("--dsn and the environment variable BOOKINGS_HOOK_SECRET are needed")
	}
	shop, err := openShop(ctx, *driver, *dsn)
	if err != nil {
		return err
	}
	defer shop.db.Close()
	server := &http.Server{Addr: *addr, Handler: routes(shop, secret), ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(bounded) // what has not ended by then is cut off
	})
	log.Printf("bookings: listening on %s", *addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// routes are the shop's own API, and below /lapse/ what Lapse calls.
func routes(s *shop, secret string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/lapse/", http.StripPrefix("/lapse", hook.Handler(secret, s)))
	mux.HandleFunc("POST /bookings", func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Ref       string `json:"ref"`
			PayWithin string `json:"pay_within"` // like 30m
		}
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&asked)
		within, werr := time.ParseDuration(asked.PayWithin)
		if err = errors.Join(err, werr); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w)(s.book(r.Context(), asked.Ref, within))
	})
	mux.HandleFunc("POST /bookings/{ref}/pay", func(w http.ResponseWriter, r *http.Request) {
		answer(w)(s.pay(r.Context(), r.PathValue("ref")))
	})
	mux.HandleFunc("GET /bookings/{ref}", func(w http.ResponseWriter, r *http.Request) {
		answer(w)(s.get(r.Context(), r.PathValue("ref")))
	})
	return mux
}

func answer(w http.ResponseWriter) func(booking, error) {
	return func(b booking, err error) {
		switch {
		case errors.Is(err, errNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case errors.Is(err, errTaken), errors.Is(err, errTooLate):
			http.Error(w, err.Error(), http.StatusConflict)
		case err != nil:
			log.Printf("bookings: %v", err)
			http.Error(w, "something went wrong here", http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"ref":%q,"state":%q,"pay_by":%q}`+"\n", b.ref, b.state, b.payBy.Format(time.RFC3339Nano))
		}
	}
}
