// Package rocketmq delivers through Apache RocketMQ 4.9 or 5.x. It is the only importer of the client library,
// and all the library's traps are handled here:
//
//   - its zero result acknowledges, and so does success with an error: see Consumer.handle;
//   - a listener that panics is neither acknowledged nor retried: panics are caught;
//   - its Shutdown does not wait for listeners, and closes channels that pulls still write to: see Consumer.stop;
//   - a send can succeed with a status that is not OK: see Sender.Send;
//   - several messages in one send lose their delay: messages are sent singly;
//   - its admin calls report success when the broker refused: see Admin, which speaks the protocol itself;
//   - its logger and its connection settings are global: see prepare.
//
// A timer message waits on the broker and is not found under its topic until it is due.
package rocketmq
