// franz-go for the recipes. driver.py has the commands and the answers.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const pollTime = 50 * time.Millisecond

var output sync.Mutex

type part struct {
	client   *kgo.Client
	commands chan []string // of a consumer
}

func main() {
	parts := map[string]*part{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		number, verb, name := words[0], words[1], words[2]
		switch verb {
		case "producer":
			client, err := producer(words[3:])
			parts[name] = &part{client: client}
			answer(number, err)
		case "consumer":
			opened, err := consumer(name, words[3], words[4:])
			parts[name] = opened
			answer(number, err)
		case "send":
			send(number, parts[name].client, words[3:])
		case "begin":
			answer(number, parts[name].client.BeginTransaction())
		case "end":
			answer(number, end(parts[name].client, words[3] == "commit"))
		default:
			if parts[name].commands != nil {
				parts[name].commands <- words
			} else {
				parts[name].client.Close()
				answer(number, nil)
			}
		}
	}
}

func say(format string, arguments ...any) {
	output.Lock()
	defer output.Unlock()
	fmt.Printf(format+"\n", arguments...)
}

func answer(number string, err error) {
	if err != nil {
		say("= %s failed %s", number, named(err))
	} else {
		say("= %s ok", number)
	}
}

// named is the error as the contract calls it, and its text.
func named(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	var loss *kgo.ErrDataLoss
	var broker *kerr.Error
	switch {
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries),
		errors.Is(err, context.DeadlineExceeded):
		return "TIMED_OUT " + text
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch):
		return "FENCED " + text
	case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID):
		return "EXPELLED " + text
	case errors.As(err, &loss):
		return "LOG_TRUNCATION " + text
	case strings.Contains(strings.ToLower(text), "crc"):
		return "CORRUPT_MESSAGE " + text
	case errors.As(err, &broker):
		return broker.Message + " " + text
	}
	return "UNKNOWN " + text
}

func settings(words []string) map[string]string {
	found := map[string]string{}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		found[key] = value
	}
	return found
}

// common are the options of producers and consumers.
func common(config map[string]string) []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(config["bootstrap.servers"], ",")...),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if id, given := config["client.id"]; given {
		options = append(options, kgo.ClientID(id))
	}
	if limit, given := milliseconds(config, "request.timeout.ms"); given {
		options = append(options, kgo.RequestTimeoutOverhead(limit))
	}
	if age, given := milliseconds(config, "metadata.max.age.ms"); given {
		options = append(options, kgo.MetadataMaxAge(age))
	}
	return options
}

func milliseconds(config map[string]string, key string) (time.Duration, bool) {
	value, err := strconv.Atoi(config[key])
	return time.Duration(value) * time.Millisecond, err == nil
}

func producer(words []string) (*kgo.Client, error) {
	config := settings(words)
	options := append(common(config), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if config["enable.idempotence"] == "false" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	if config["acks"] == "1" {
		options = append(options, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	}
	if limit, given := milliseconds(config, "request.timeout.ms"); given {
		options = append(options, kgo.ProduceRequestTimeout(limit))
	}
	if limit, given := milliseconds(config, "delivery.timeout.ms"); given {
		options = append(options, kgo.RecordDeliveryTimeout(limit), kgo.AllowIdempotentProduceCancellation())
	}
	if limit, given := milliseconds(config, "transaction.timeout.ms"); given {
		options = append(options, kgo.TransactionTimeout(limit))
	}
	id, transactional := config["transactional.id"]
	if transactional {
		options = append(options, kgo.TransactionalID(id))
	}
	client, err := kgo.NewClient(options...)
	if err == nil && transactional {
		// The first use of the id ends the transactions of earlier producers.
		_, _, err = client.ProducerID(context.Background())
	}
	return client, err
}

func send(number string, client *kgo.Client, words []string) {
	partition, _ := strconv.Atoi(words[1])
	value, _ := url.PathUnescape(words[2])
	record := &kgo.Record{Topic: words[0], Partition: int32(partition), Value: []byte(value)}
	client.Produce(context.Background(), record, func(sent *kgo.Record, err error) {
		if err != nil {
			answer(number, err)
		} else {
			say("= %s ok %d", number, sent.Offset)
		}
	})
}

func end(client *kgo.Client, commit bool) error {
	ctx := context.Background()
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TransactionEndTry(commit))
}

func consumer(name, topics string, words []string) (*part, error) {
	config := settings(words)
	reset := kgo.NewOffset().AtStart()
	if config["auto.offset.reset"] == "none" {
		reset = kgo.NoResetOffset()
	}
	options := append(common(config), kgo.ConsumeResetOffset(reset), kgo.FetchMaxWait(500*time.Millisecond))
	if config["isolation.level"] == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	group, inGroup := config["group.id"]
	if inGroup {
		options = append(options, inGroupOptions(name, group, topics, config)...)
	} else {
		places := map[string]map[int32]kgo.Offset{}
		for _, topic := range strings.Split(topics, ",") {
			start := kgo.NewOffset().At(0)
			places[topic] = map[int32]kgo.Offset{0: start}
		}
		options = append(options, kgo.ConsumePartitions(places))
	}
	client, err := kgo.NewClient(options...)
	opened := &part{client: client, commands: make(chan []string, 16)}
	if err == nil {
		go read(name, opened, inGroup)
	}
	return opened, err
}

func inGroupOptions(name, group, topics string, config map[string]string) []kgo.Opt {
	lost := func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
		say("@ %s revoked %s", name, listed(places))
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(strings.Split(topics, ",")...),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.DisableAutoCommit(),
		// What has been polled is processed and committed before partitions are taken away.
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			say("@ %s assigned %s", name, listed(places))
		}),
		kgo.OnPartitionsLost(lost),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, places map[string][]int32) {
			if config["commit.on.revoke"] == "true" {
				if err := client.CommitUncommittedOffsets(ctx); err != nil {
					say("@ %s failed %s", name, named(err))
				}
			}
			lost(ctx, client, places)
		}),
	}
	if limit, given := milliseconds(config, "session.timeout.ms"); given {
		options = append(options, kgo.SessionTimeout(limit))
	}
	if limit, given := milliseconds(config, "heartbeat.interval.ms"); given {
		options = append(options, kgo.HeartbeatInterval(limit))
	}
	// The application's limit is the group's: a member that does not allow the rebalance until then is expelled.
	if limit, given := milliseconds(config, "max.poll.interval.ms"); given {
		options = append(options, kgo.RebalanceTimeout(limit))
	}
	return options
}

func listed(places map[string][]int32) string {
	var words []string
	for topic, partitions := range places {
		for _, partition := range partitions {
			words = append(words, fmt.Sprintf("%s:%d", topic, partition))
		}
	}
	return strings.Join(words, ",")
}

// read polls until it is told to close. While a consumer holds, it allows no rebalance.
func read(name string, opened *part, inGroup bool) {
	polls := true
	for {
		var words []string
		if polls {
			select {
			case words = <-opened.commands:
			default:
				poll(name, opened.client)
				opened.client.AllowRebalance()
			}
		} else {
			words = <-opened.commands
		}
		if words == nil {
			continue
		}
		switch words[1] {
		case "close":
			if inGroup {
				opened.client.CloseAllowingRebalance()
			} else {
				opened.client.Close()
			}
			answer(words[0], nil)
			return
		case "commit":
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err := opened.client.CommitUncommittedOffsets(ctx)
			cancel()
			answer(words[0], err)
		case "hold":
			// The rebalance waits from this poll on.
			poll(name, opened.client)
			polls = false
			answer(words[0], nil)
		case "resume":
			polls = true
			answer(words[0], nil)
		}
	}
}

func poll(name string, client *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), pollTime)
	defer cancel()
	fetches := client.PollFetches(ctx)
	fetches.EachError(func(_ string, _ int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) {
			say("@ %s failed %s", name, named(err))
		}
	})
	fetches.EachRecord(func(record *kgo.Record) {
		value := url.PathEscape(string(record.Value))
		say("@ %s record %s %d %d %d %s", name, record.Topic, record.Partition, record.Offset,
			record.Timestamp.UnixMilli(), value)
	})
}
