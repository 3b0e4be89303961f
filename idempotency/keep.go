package idempotency

import "net/http"

// statusClientClosed is the status with which proxies and handlers record that the client has gone.
const statusClientClosed = 499

// keepByDefault reports whether a status other than 2xx is the result of its key. It is not if the
// same request may get another answer later, because the work was not done or was refused for
// reasons outside the request.
func keepByDefault(status int) bool {
	switch status {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect, // the client sends the key to the new path
		http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, statusClientClosed:
		return false
	}
	return status < http.StatusInternalServerError
}

// keeps reports whether a response is the result of its key. late says that the response was begun
// after the context of the request had ended, so that the handler may have given up.
func keeps(keep func(int) bool, status int, late bool) bool {
	switch {
	case status >= 200 && status < 300:
		return true
	case status == statusClientClosed || late:
		return false
	}
	return keep(status)
}
