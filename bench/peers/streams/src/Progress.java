import java.util.concurrent.atomic.AtomicLong;

/** How far this process is, whether that is committed or not. */
final class Progress {
  private final AtomicLong started = new AtomicLong();
  private final AtomicLong handled = new AtomicLong();

  /** A record was read; the first one starts the clock. */
  void start() {
    if (started.get() == 0) {
      started.compareAndSet(0, System.nanoTime());
    }
  }

  /** It was claimed, or is a repeat. */
  void handled() {
    handled.incrementAndGet();
  }

  long done() {
    return handled.get();
  }

  /** Seconds since the first record, 0 if there was none. */
  double seconds() {
    return started.get() == 0 ? 0 : (System.nanoTime() - started.get()) / 1e9;
  }
}
