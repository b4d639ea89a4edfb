package httpd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// newServer has the limits of whatever moldtape serves over HTTP.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: marked(h), ConnContext: connContext,
		ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// lastAnswers is how long an answer under way may take once Serve is to end.
const lastAnswers = 500 * time.Millisecond

// Serve serves h on l, within the limits of a node's server, until ctx is done,
// which is no error. Answers under way are still given.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	s := newServer(h, log)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		last, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		if s.Shutdown(last) != nil {
			s.Close()
		}
	})
	err := serve(context.Background(), s, l)
	if !stop() {
		<-done
	}
	return err
}

func serve(ctx context.Context, s *http.Server, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(&limited{Listener: l, max: maxConns}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
