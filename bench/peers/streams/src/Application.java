import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.function.LongConsumer;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/** The application: decode, claim by id, add up by account, each in tasks of its own with a topic between them. */
final class Application implements AutoCloseable {
  /** What the stores hold at the end of the topic. */
  record Result(double seconds, long claims, Map<Integer, Long> balances) {}

  private static final Serde<byte[]> BYTES = Serdes.ByteArray();
  private static final String SEGMENT = String.valueOf(256 << 20); // the brokers of tests have small ones

  /**
   * One for each processor, and one task for each that claims: with more partitions a commit writes markers to more of
   * them.
   */
  private static final int THREADS = Math.max(2, Runtime.getRuntime().availableProcessors());

  private final Order order;
  private final Progress progress = new Progress();
  private final KafkaStreams streams;

  Application(Order order) {
    this.order = order;
    streams = new KafkaStreams(topology(), config());
    streams.setUncaughtExceptionHandler(
        e -> {
          Main.fail(e);
          return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
  }

  private Topology topology() {
    StreamsBuilder b = new StreamsBuilder();
    KStream<byte[], byte[]> all =
        b.stream(order.topic(), Consumed.with(BYTES, BYTES))
            .process(() -> new Decode(order, progress))
            .repartition(partitioned("by-id", THREADS))
            .process(
                with(
                    () -> new Claim(order, progress),
                    Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(Claim.CLAIMS), BYTES, BYTES),
                    Stores.keyValueStoreBuilder(
                            Stores.inMemoryKeyValueStore(Claim.TOTALS), Serdes.Integer(), Serdes.Long())
                        .withCachingEnabled()));
    if (!order.claimsOnly()) {
      all =
          all.repartition(partitioned("by-account", 1))
              .process(
                  with(
                      Balance::new,
                      Stores.keyValueStoreBuilder(
                              Stores.inMemoryKeyValueStore(Balance.PARTS), Serdes.Long(), Serdes.Long())
                          .withCachingEnabled()));
    }
    all.to(order.out(), Produced.with(BYTES, BYTES));
    return b.build();
  }

  private static Repartitioned<byte[], byte[]> partitioned(String name, int partitions) {
    return Repartitioned.<byte[], byte[]>as(name)
        .withKeySerde(BYTES)
        .withValueSerde(BYTES)
        .withNumberOfPartitions(partitions);
  }

  private static ProcessorSupplier<byte[], byte[], byte[], byte[]> with(
      ProcessorSupplier<byte[], byte[], byte[], byte[]> processor, StoreBuilder<?>... stores) {
    return new ProcessorSupplier<>() {
      @Override
      public Processor<byte[], byte[], byte[], byte[]> get() {
        return processor.get();
      }

      @Override
      public Set<StoreBuilder<?>> stores() {
        return Set.of(stores);
      }
    };
  }

  private Properties config() {
    Properties p = new Properties();
    p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, order.brokers());
    p.put(StreamsConfig.APPLICATION_ID_CONFIG, order.application());
    p.put(StreamsConfig.STATE_DIR_CONFIG, order.dir());
    p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, THREADS);
    p.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 64 << 20);
    p.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 20_000);
    p.put(StreamsConfig.MAX_TASK_IDLE_MS_CONFIG, -1L);
    p.put(StreamsConfig.ENABLE_METRICS_PUSH_CONFIG, false);
    // A process that was killed is replaced at once, and not when its session is over.
    p.put(StreamsConfig.consumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), "worker");
    p.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    p.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
    p.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 4 << 20);
    p.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 256 << 10);
    p.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 50);
    p.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 128 << 20);
    p.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "none");
    // Longer than a killed broker takes to start: a transaction that it aborts while it starts may keep its offsets
    // pending forever.
    p.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 30_000);
    p.put(StreamsConfig.topicPrefix(TopicConfig.SEGMENT_BYTES_CONFIG), SEGMENT);
    return p;
  }

  /**
   * Runs until everything is committed to the last topic, for those who read committed records. Progress is the number
   * of records that were handled.
   */
  Result run(LongConsumer report) throws InterruptedException, ExecutionException {
    makeOut();
    streams.start();
    Map<Integer, Long> handled = new HashMap<>(); // by task
    Properties p = new Properties();
    p.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, order.brokers());
    p.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
    TopicPartition out = new TopicPartition(order.out(), 0);
    try (KafkaConsumer<byte[], byte[]> c =
        new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      c.assign(List.of(out));
      c.seekToBeginning(List.of(out));
      while (order.hold() || handled.values().stream().mapToLong(n -> n).sum() < order.records()) {
        for (ConsumerRecord<byte[], byte[]> r : c.poll(Duration.ofMillis(20))) {
          if (Total.number(r.key()) == Total.HANDLED) {
            Total total = Total.of(r.value());
            handled.put(total.task(), total.amount());
          }
        }
        report.accept(progress.done());
      }
    }
    double seconds = progress.seconds();
    return new Result(seconds, claims(), balances());
  }

  private void makeOut() throws InterruptedException, ExecutionException {
    try (Admin admin = Admin.create(Map.of(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, order.brokers()))) {
      NewTopic out = new NewTopic(order.out(), 1, (short) -1);
      out.configs(Map.of(TopicConfig.SEGMENT_BYTES_CONFIG, SEGMENT));
      admin.createTopics(List.of(out)).all().get();
    } catch (ExecutionException e) {
      if (!(e.getCause() instanceof TopicExistsException)) { // after a kill
        throw e;
      }
    }
  }

  private long claims() throws InterruptedException {
    return this.<byte[], byte[]>store(Claim.CLAIMS).approximateNumEntries(); // exact: it is in memory
  }

  private Map<Integer, Long> balances() throws InterruptedException {
    Map<Integer, Long> sums = new HashMap<>();
    if (order.claimsOnly()) {
      return sums;
    }
    try (KeyValueIterator<Long, Long> all = this.<Long, Long>store(Balance.PARTS).all()) {
      while (all.hasNext()) {
        var part = all.next();
        int n = Balance.number(part.key) - Total.COUNTERS;
        if (n >= 0) {
          sums.merge(n, part.value, Long::sum);
        }
      }
    }
    return sums;
  }

  /** A store as soon as it can be read: after a kill everything may be committed before the stores are restored. */
  private <K, V> ReadOnlyKeyValueStore<K, V> store(String name) throws InterruptedException {
    while (true) {
      if (streams.state() == KafkaStreams.State.RUNNING) {
        try {
          return streams.store(
              StoreQueryParameters.fromNameAndType(name, QueryableStoreTypes.<K, V>keyValueStore()));
        } catch (InvalidStateStoreException e) {
          // tasks are moved
        }
      }
      Thread.sleep(10);
    }
  }

  @Override
  public void close() {
    streams.close(Duration.ofMinutes(1));
  }
}
