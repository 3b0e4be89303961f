import java.nio.ByteBuffer;

/**
 * What one task has added up: for an account, or for a counter. Keys are numbers: counters come first, then accounts.
 */
record Total(int task, long amount) {
  /** The counter of handled records, repeats included. */
  static final int HANDLED = 0;

  /** How many counters there are; the account n has the number COUNTERS + n. */
  static final int COUNTERS = 1;

  static byte[] key(int number) {
    return ByteBuffer.allocate(Integer.BYTES).putInt(number).array();
  }

  static int number(byte[] key) {
    return ByteBuffer.wrap(key).getInt();
  }

  byte[] bytes() {
    return ByteBuffer.allocate(Integer.BYTES + Long.BYTES).putInt(task).putLong(amount).array();
  }

  static Total of(byte[] bytes) {
    ByteBuffer b = ByteBuffer.wrap(bytes);
    return new Total(b.getInt(), b.getLong());
  }
}
