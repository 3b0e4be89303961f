/**
 * What to consume; one line of JSON on standard input.
 *
 * @param brokers host:port of each broker, with commas between them
 * @param application the id of the application, which is its consumer group as well
 * @param records how many records the topic has
 * @param accounts how many accounts there are in each set
 * @param partitions how many partitions the topic has
 * @param work shared, partition or claims
 * @param dir the directory of the application's state
 * @param hold stay at the end of the topic, to be killed
 * @param warmTopic a topic that is consumed before the clock starts; empty if there is none
 * @param warmRecords how many records that one has
 */
record Order(
    String brokers,
    String topic,
    String application,
    long records,
    int accounts,
    int partitions,
    String work,
    String dir,
    boolean hold,
    String warmTopic,
    long warmRecords) {

  boolean claimsOnly() {
    return work.equals("claims");
  }

  /** The number of an account: with the work "partition" each partition has a set of its own. */
  int account(int partition, int n) {
    return work.equals("partition") ? partition * accounts + n : n;
  }

  /** How many accounts there are in all sets. */
  int all() {
    return claimsOnly() ? 0 : work.equals("partition") ? partitions * accounts : accounts;
  }

  /** The topic of the results. */
  String out() {
    return application + "-out";
  }

  /** The order for the topic before the clock starts. */
  Order warm() {
    return new Order(
        brokers, warmTopic, application + "-warm", warmRecords, accounts, partitions, work, dir, false, "", 0);
  }
}
