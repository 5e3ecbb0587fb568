// Copies records in transactions with franz-go, under the contract of Kafka's TransactionalMessageCopier.
//
// Its options, the lines of JSON that it prints, and when it ends are those of Kafka's tool in group mode: franz-go
// commits a group's offsets in a transaction only for members of the group. Each transaction holds the records of one
// poll and their offsets. The exit code is 0 when everything is copied and after SIGTERM, and 1 after an error that the
// client cannot recover from.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const pollTime = 200 * time.Millisecond

var (
	inputTopic         = flag.String("input-topic", "", "")
	_                  = flag.Int("input-partition", 0, "ignored, as by Kafka's tool in group mode")
	outputTopic        = flag.String("output-topic", "", "")
	brokerList         = flag.String("broker-list", "", "")
	consumerGroup      = flag.String("consumer-group", "", "")
	transactionSize    = flag.Int("transaction-size", 200, "")
	transactionTimeout = flag.Int("transaction-timeout", 60000, "")
	transactionalID    = flag.String("transactional-id", "", "")
	randomAborts       = flag.Bool("enable-random-aborts", false, "")
	groupMode          = flag.Bool("group-mode", false, "")
	_                  = flag.Bool("use-group-metadata", true, "franz-go always sends the group's metadata")
)

// What has been copied, and what has not. The group's callback runs in a goroutine of its own.
var processed, sinceRebalance, remaining atomic.Int64
var assigned atomic.Bool

func main() {
	flag.Parse()
	if !*groupMode {
		fail(errors.New("franz-go copies in group mode only: --group-mode"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(*brokerList, ",")...),
		kgo.TransactionalID(*transactionalID),
		kgo.TransactionTimeout(time.Duration(*transactionTimeout)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// Small batches, so that a transaction has several requests in flight.
		kgo.ProducerBatchMaxBytes(1024),
		kgo.ConsumerGroup(*consumerGroup),
		kgo.ConsumeTopics(*inputTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(10*time.Second),
		kgo.HeartbeatInterval(3*time.Second),
		kgo.OnPartitionsAssigned(onAssigned),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	if err != nil {
		fail(err)
	}
	for ctx.Err() == nil && (!assigned.Load() || remaining.Load() > 0) {
		tell("progress", "ProcessLoop")
		if records := poll(ctx, session); len(records) > 0 {
			copyRecords(session, records)
		}
	}
	session.Close()
	tell("shutdown_complete", "")
}

func poll(ctx context.Context, session *kgo.GroupTransactSession) []*kgo.Record {
	ctx, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	fetches := session.PollRecords(ctx, *transactionSize)
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			fmt.Fprintf(os.Stderr, "%s-%d: %v\n", topic, partition, err)
		}
	})
	return fetches.Records()
}

// copyRecords is one transaction. After an abort the session reads again from the committed offsets.
func copyRecords(session *kgo.GroupTransactSession, records []*kgo.Record) {
	// The transaction ends in order even when the program is asked to end.
	ctx := context.Background()
	if err := session.Begin(); err != nil {
		fail(err)
	}
	promise := kgo.AbortingFirstErrPromise(session.Client())
	for _, record := range records {
		session.Produce(ctx, &kgo.Record{
			Topic: *outputTopic, Partition: record.Partition, Key: record.Key, Value: record.Value,
		}, promise.Promise())
	}
	wanted := promise.Err() == nil && !(*randomAborts && rand.Intn(3) == 0)
	committed, err := session.End(ctx, kgo.TransactionEndTry(wanted))
	if err != nil {
		fail(err)
	}
	if !committed {
		fmt.Fprintln(os.Stderr, "aborted a transaction; first error of its records:", promise.Err())
		return
	}
	count := int64(len(records))
	processed.Add(count)
	sinceRebalance.Add(count)
	remaining.Add(-count)
}

func onAssigned(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
	admin := kadm.NewClient(client)
	for {
		left, err := missing(ctx, admin, partitions[*inputTopic])
		if err == nil {
			remaining.Store(left)
			break
		}
		if ctx.Err() != nil {
			return
		}
		fmt.Fprintln(os.Stderr, "asks again:", err)
		time.Sleep(pollTime)
	}
	sinceRebalance.Store(0)
	assigned.Store(true)
	tell("progress", "RebalanceComplete")
}

// missing is how many records the group has not committed.
func missing(ctx context.Context, admin *kadm.Client, partitions []int32) (int64, error) {
	ends, err := admin.ListEndOffsets(ctx, *inputTopic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, err
	}
	committed, err := admin.FetchOffsets(ctx, *consumerGroup)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return 0, err
	}
	var left int64
	for _, partition := range partitions {
		end, _ := ends.Lookup(*inputTopic, partition)
		left += end.Offset
		if at, found := committed.Lookup(*inputTopic, partition); found && at.At > 0 {
			left -= at.At
		}
	}
	return left, nil
}

func tell(what, stage string) {
	line, err := json.Marshal(map[string]any{
		what:             *transactionalID,
		"stage":          stage,
		"totalProcessed": processed.Load(),
		"consumed":       sinceRebalance.Load(),
		"remaining":      remaining.Load(),
		"time":           time.Now().Format("2006/01/02 15:04:05:000"),
	})
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cannot go on:", err)
	os.Exit(1)
}
