import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

/**
 * Consumes a topic with Kafka Streams as an order on standard input says. It says "warm" when the clock may start, "at
 * N" for its progress, and in the end "result" with what its stores hold, or "fail" and why. It ends when its standard
 * input does.
 */
public final class Main {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Main() {}

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    Order order = JSON.readValue(in.readLine(), Order.class);
    Thread parent = new Thread(() -> awaitEnd(in));
    parent.setDaemon(true);
    parent.start();
    try {
      if (!order.warmTopic().isEmpty()) {
        try (Application warm = new Application(order.warm())) {
          warm.run(n -> {});
        }
      }
      say("warm");
      Application.Result r = new Application(order).run(n -> say("at " + n));
      say("result " + JSON.writeValueAsString(r));
    } catch (Exception e) {
      fail(e);
    }
    parent.join();
  }

  private static void awaitEnd(BufferedReader in) {
    try {
      while (in.readLine() != null) {
        // there is nothing more to be told
      }
    } catch (IOException e) {
      // as its end
    }
    Runtime.getRuntime().halt(0);
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  static void fail(Throwable e) {
    say("fail " + e.toString().replaceAll("\\s+", " "));
  }
}
