// Package changelog keeps the logs of stores ([replica.Log]) in partitions of Kafka topics.
//
// A [Client] has the connections of a process; a [Log] is the log of one partition:
//
//	client, err := changelog.New(opts, changelog.Options{Replication: 3})
//	err = client.Prepare(ctx, "billing.payments.changelog", 6)
//	store, err := replica.Open(ctx, client.Log("billing.payments.changelog", 0), copies, replica.Options{})
//
// Records are appended by one idempotent producer with acks=all, and read directly, without a group and
// without transactions. Each record is in a batch of its own. The topic keeps all records: nothing is
// compacted, and nothing expires. Kafka does not sync each append to disk: acknowledged records survive as
// long as one in-sync replica's machine keeps its memory.
//
// The application needs the rights Read, Write, Describe and DescribeConfigs of the topic, and Create if the
// topic is to be created.
package changelog
