import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Members of consumer groups with Kafka's own client: the same commands and events as group_members.py. */
public class GroupMembers {
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "RangeAssignor",
            "roundrobin", "RoundRobinAssignor",
            "sticky", "StickyAssignor",
            "cooperative-sticky", "CooperativeStickyAssignor");

    public static void main(String[] args) throws Exception {
        Map<String, Member> members = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[1].equals("open")) {
                Member member = new Member(words[0], words[2], Arrays.asList(words).subList(3, words.length));
                members.put(words[0], member);
                Thread thread = new Thread(member, words[0]);
                thread.setDaemon(true);
                thread.start();
            } else {
                members.get(words[0]).commands.add(words[1]);
            }
        }
    }

    private static void tell(String name, String event, String arguments) {
        System.out.println("@ " + name + " " + event + " " + arguments);
    }

    private static String listed(Collection<TopicPartition> partitions) {
        TreeSet<String> names = new TreeSet<>();
        for (TopicPartition partition : partitions) {
            names.add(partition.topic() + ":" + partition.partition());
        }
        return names.isEmpty() ? "-" : String.join(",", names);
    }

    private static class Member implements Runnable, ConsumerRebalanceListener {
        final BlockingQueue<String> commands = new LinkedBlockingQueue<>();
        private final String name;
        private final String topics;
        private final Properties config = new Properties();
        private final boolean commitsOnRevoke;
        private KafkaConsumer<String, String> consumer;

        Member(String name, String topics, List<String> settings) {
            this.name = name;
            this.topics = topics;
            for (String setting : settings) {
                String[] pair = setting.split("=", 2);
                config.put(pair[0], pair[1]);
            }
            commitsOnRevoke = "true".equals(config.remove("commit.on.revoke"));
            List<String> classes = new ArrayList<>();
            for (String assignor : config.getProperty("partition.assignment.strategy").split(",")) {
                classes.add("org.apache.kafka.clients.consumer." + ASSIGNORS.get(assignor));
            }
            config.put("partition.assignment.strategy", String.join(",", classes));
        }

        @Override
        public void run() {
            try {
                consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
                if (topics.startsWith("^")) {
                    consumer.subscribe(Pattern.compile(topics), this);
                } else {
                    consumer.subscribe(Arrays.asList(topics.split(",")), this);
                }
                serve();
                consumer.close();
                tell(name, "closed", "");
            } catch (Throwable error) {
                error.printStackTrace();
                tell(name, "failed", error.toString());
            }
        }

        private void serve() throws InterruptedException {
            boolean polls = true;
            while (true) {
                if (!polls || !commands.isEmpty()) {
                    switch (commands.take()) {
                        case "close":
                            return;
                        case "hold":
                            polls = false;
                            tell(name, "holds", "");
                            break;
                        case "go-on":
                            polls = true;
                            break;
                        case "commit-sync":
                            commit();
                            break;
                        case "commit-async":
                            consumer.commitAsync((offsets, error) ->
                                    tell(name, "committed-async", error == null ? "ok" : error.toString()));
                            break;
                    }
                }
                if (polls) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                        String where = record.topic() + " " + record.partition() + " " + record.offset();
                        tell(name, "record", where + " " + record.value());
                    }
                }
            }
        }

        private void commit() {
            try {
                consumer.commitSync();
                tell(name, "committed-sync", "ok");
            } catch (RuntimeException error) {
                tell(name, "committed-sync", error.toString());
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell(name, "assigned", listed(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (commitsOnRevoke) {
                commit();
            }
            tell(name, "revoked", listed(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell(name, "lost", listed(partitions));
        }
    }
}
