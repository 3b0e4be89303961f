import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;

/**
 * Decodes each record, and forwards only what its event moves under its id. Copies of an event may be in different
 * partitions of the topic, so every record goes through a topic that is partitioned by the id; decoding first leaves 32
 * bytes of it there.
 */
final class Decode extends ContextualProcessor<byte[], byte[], byte[], byte[]> {
  private static final ObjectReader PAYMENT = new ObjectMapper().readerFor(Payment.class);
  private static final byte[] NOTHING = {};

  /** The JSON of a record. */
  record Payment(String event, int from, int to, long amount, String currency, String reference) {}

  private final Order order;
  private final Progress progress;

  Decode(Order order, Progress progress) {
    this.order = order;
    this.progress = progress;
  }

  @Override
  public void process(Record<byte[], byte[]> r) {
    progress.start();
    Payment p;
    try {
      p = PAYMENT.readValue(r.value());
    } catch (IOException e) {
      throw new UncheckedIOException("decoding a payment", e);
    }
    byte[] moved = NOTHING;
    if (!order.claimsOnly()) {
      int partition = context().recordMetadata().orElseThrow().partition();
      moved = ByteBuffer.allocate(2 * Integer.BYTES + Long.BYTES)
          .putInt(order.account(partition, p.from))
          .putInt(order.account(partition, p.to))
          .putLong(p.amount)
          .array();
    }
    context().forward(new Record<>(id(r), moved, r.timestamp()));
  }

  private static byte[] id(Record<byte[], byte[]> r) {
    Header h = r.headers().lastHeader("message_id");
    if (h == null) {
      throw new IllegalArgumentException("a record has no header message_id");
    }
    UUID id = UUID.fromString(new String(h.value(), StandardCharsets.ISO_8859_1));
    return ByteBuffer.allocate(2 * Long.BYTES)
        .putLong(id.getMostSignificantBits())
        .putLong(id.getLeastSignificantBits())
        .array();
  }
}
