import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.LogTruncationException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.CorruptRecordException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own client for the recipes. driver.py has the commands and the answers. */
public class RecipeClient {
    private static final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    private static final Map<String, Reader> readers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            try {
                serve(words);
            } catch (RuntimeException error) {
                answer(words[0], error);
            }
        }
        System.exit(0);
    }

    private static void serve(String[] words) throws InterruptedException {
        String number = words[0];
        String name = words[2];
        KafkaProducer<String, String> producer = producers.get(name);
        switch (words[1]) {
            case "producer":
                open(name, config(Arrays.asList(words).subList(3, words.length)));
                break;
            case "send":
                String value = URLDecoder.decode(words[5], StandardCharsets.UTF_8);
                ProducerRecord<String, String> record =
                        new ProducerRecord<>(words[3], Integer.valueOf(words[4]), null, value);
                producer.send(record, (sent, error) -> {
                    if (error != null) {
                        answer(number, error);
                    } else {
                        say("= " + number + " ok " + sent.offset());
                    }
                });
                return;
            case "begin":
                producer.beginTransaction();
                break;
            case "end":
                if (words[3].equals("commit")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                break;
            case "consumer":
                Reader reader = new Reader(name, words[3], config(Arrays.asList(words).subList(4, words.length)));
                readers.put(name, reader);
                Thread thread = new Thread(reader, name);
                thread.setDaemon(true);
                thread.start();
                break;
            case "close":
                if (producer != null) {
                    producer.close(Duration.ofSeconds(1));
                    break;
                }
                readers.get(name).commands.put(words);
                return;
            default:
                readers.get(name).commands.put(words);
                return;
        }
        say("= " + number + " ok");
    }

    private static void open(String name, Properties config) {
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        producers.put(name, producer);
        if (config.containsKey("transactional.id")) {
            producer.initTransactions();
        }
    }

    private static Properties config(List<String> settings) {
        Properties config = new Properties();
        for (String setting : settings) {
            String[] pair = setting.split("=", 2);
            config.put(pair[0], pair[1]);
        }
        return config;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void answer(String number, Throwable error) {
        say("= " + number + " failed " + named(error));
    }

    private static String named(Throwable error) {
        String text = String.valueOf(error).replace('\n', ' ');
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof TimeoutException) {
                return "TIMED_OUT " + text;
            } else if (cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException) {
                return "FENCED " + text;
            } else if (cause instanceof CommitFailedException) {
                return "EXPELLED " + text;
            } else if (cause instanceof LogTruncationException) {
                return "LOG_TRUNCATION " + text;
            } else if (cause instanceof CorruptRecordException || String.valueOf(cause).contains("is corrupt")) {
                return "CORRUPT_MESSAGE " + text;
            } else if (Errors.forException(cause) != Errors.UNKNOWN_SERVER_ERROR) {
                return Errors.forException(cause).name() + " " + text;
            }
        }
        return error.getClass().getSimpleName() + " " + text;
    }

    private static class Reader implements Runnable, ConsumerRebalanceListener {
        final BlockingQueue<String[]> commands = new LinkedBlockingQueue<>();
        private final String name;
        private final String topics;
        private final Properties config;
        private final boolean commitsOnRevoke;
        private KafkaConsumer<String, String> consumer;

        Reader(String name, String topics, Properties config) {
            this.name = name;
            this.topics = topics;
            this.config = config;
            commitsOnRevoke = "true".equals(config.remove("commit.on.revoke"));
            config.put("enable.auto.commit", "false");
        }

        @Override
        public void run() {
            consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
            if (config.containsKey("group.id")) {
                consumer.subscribe(Arrays.asList(topics.split(",")), this);
            } else {
                List<TopicPartition> places = new ArrayList<>();
                for (String topic : topics.split(",")) {
                    places.add(new TopicPartition(topic, 0));
                }
                consumer.assign(places);
                places.forEach(place -> consumer.seek(place, 0));
            }
            boolean polls = true;
            while (true) {
                try {
                    if (!polls || !commands.isEmpty()) {
                        String[] words = commands.take();
                        if (words[1].equals("close")) {
                            consumer.close(Duration.ofSeconds(1));
                            say("= " + words[0] + " ok");
                            return;
                        }
                        polls = obey(words, polls);
                    } else {
                        consumer.poll(Duration.ofMillis(50)).forEach(this::tell);
                    }
                } catch (Exception error) {
                    say("@ " + name + " failed " + named(error));
                }
            }
        }

        private boolean obey(String[] words, boolean polls) {
            try {
                if (words[1].equals("commit")) {
                    consumer.commitSync();
                }
                say("= " + words[0] + " ok");
            } catch (RuntimeException error) {
                answer(words[0], error);
            }
            return words[1].equals("resume") || polls && !words[1].equals("hold");
        }

        private void tell(ConsumerRecord<String, String> record) {
            String value = URLEncoder.encode(record.value(), StandardCharsets.UTF_8).replace("+", "%20");
            say("@ " + name + " record " + record.topic() + " " + record.partition() + " " + record.offset() + " "
                    + record.timestamp() + " " + value);
        }

        private static String listed(Collection<TopicPartition> places) {
            return places.stream().map(place -> place.topic() + ":" + place.partition()).collect(Collectors.joining(","));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> places) {
            say("@ " + name + " assigned " + listed(places));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> places) {
            if (commitsOnRevoke) {
                consumer.commitSync();
            }
            say("@ " + name + " revoked " + listed(places));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> places) {
            say("@ " + name + " revoked " + listed(places));
        }
    }
}
