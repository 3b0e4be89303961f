import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.BitSet;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Claims ids, and adds up what new events move. The totals are in a store, so that they change in the transaction of
 * the claims; those that have changed are forwarded from time to time and not for each event, as other contenders add
 * to an account once for each batch. What was committed and not forwarded before a crash is forwarded when the task
 * starts again: a total replaces the one before it.
 */
final class Claim extends ContextualProcessor<byte[], byte[], byte[], byte[]> {
  static final String CLAIMS = "claims";
  static final String TOTALS = "totals";
  static final Duration FORWARDED_EVERY = Duration.ofMillis(100);
  private static final byte[] CLAIMED = {};

  private final Progress progress;
  private final long[] totals;
  private final BitSet changed = new BitSet();
  private KeyValueStore<byte[], byte[]> claims;
  private KeyValueStore<Integer, Long> store;

  Claim(Order order, Progress progress) {
    this.progress = progress;
    this.totals = new long[Total.COUNTERS + order.all()];
  }

  @Override
  public void init(ProcessorContext<byte[], byte[]> context) {
    super.init(context);
    claims = context.getStateStore(CLAIMS);
    store = context.getStateStore(TOTALS);
    try (KeyValueIterator<Integer, Long> all = store.all()) {
      while (all.hasNext()) {
        KeyValue<Integer, Long> total = all.next();
        totals[total.key] = total.value;
        changed.set(total.key);
      }
    }
    context.schedule(FORWARDED_EVERY, PunctuationType.WALL_CLOCK_TIME, this::forward);
  }

  @Override
  public void process(Record<byte[], byte[]> r) {
    add(Total.HANDLED, 1);
    if (claims.putIfAbsent(r.key(), CLAIMED) == null && r.value().length > 0) {
      ByteBuffer moved = ByteBuffer.wrap(r.value());
      int from = moved.getInt();
      int to = moved.getInt();
      long amount = moved.getLong();
      add(Total.COUNTERS + from, -amount);
      add(Total.COUNTERS + to, amount);
    }
    progress.handled();
  }

  private void add(int number, long amount) {
    totals[number] += amount;
    store.put(number, totals[number]);
    changed.set(number);
  }

  /** Forwards the counter last: when it has arrived, so has everything that it counts. */
  private void forward(long now) {
    int task = context().taskId().partition();
    for (int n = changed.previousSetBit(totals.length); n >= 0; n = changed.previousSetBit(n - 1)) {
      context().forward(new Record<>(Total.key(n), new Total(task, totals[n]).bytes(), now));
    }
    changed.clear();
  }
}
