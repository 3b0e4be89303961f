import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;

/** Keeps the balance of each account: the sum of the totals that the tasks which claim have forwarded last. */
final class Balance extends ContextualProcessor<byte[], byte[], byte[], byte[]> {
  static final String PARTS = "parts";

  private final Map<Integer, Long> balances = new HashMap<>();
  private KeyValueStore<Long, Long> parts;

  @Override
  public void init(ProcessorContext<byte[], byte[]> context) {
    super.init(context);
    parts = context.getStateStore(PARTS);
    try (KeyValueIterator<Long, Long> all = parts.all()) {
      while (all.hasNext()) {
        KeyValue<Long, Long> part = all.next();
        balances.merge(number(part.key), part.value, Long::sum);
      }
    }
  }

  @Override
  public void process(Record<byte[], byte[]> r) {
    int number = Total.number(r.key());
    Total total = Total.of(r.value());
    long key = (long) number << 32 | total.task();
    Long before = parts.get(key);
    parts.put(key, total.amount());
    long balance = balances.merge(number, total.amount() - (before == null ? 0 : before), Long::sum);
    context().forward(r.withValue(new Total(0, balance).bytes()));
  }

  static int number(long key) {
    return (int) (key >>> 32);
  }
}
