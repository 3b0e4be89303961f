package engine

import "context"

// control runs fn in the committer, with everything before it applied, and waits until what fn put
// into the batch is durable.
func (e *Engine) control(ctx context.Context, fn func(g *group) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	return e.submit(ctx, &command{ticket: newTicket(), run: fn})
}

// goBehind runs fn in a goroutine that Close cancels and waits for. It is called by the committer,
// or between enter and leave: Close waits for both before it waits for what they began.
func (e *Engine) goBehind(fn func(ctx context.Context)) {
	e.behind.Add(1)
	go func() {
		defer e.behind.Done()
		fn(e.work)
	}()
}
