-- +goose Up

-- Only adds: programs of the version before go on working, and may be started again (see t_counter 'schema_floor').

-- status: 0 pending, 5 confirming, 10 paid, 20 cancelled, 30 closed.
ALTER TABLE t_order ADD COLUMN closed_at INTEGER NULL;
ALTER TABLE t_order ADD COLUMN confirm_until INTEGER NULL;
ALTER TABLE t_order ADD COLUMN paying_until INTEGER NULL;
ALTER TABLE t_order ADD COLUMN remind_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE t_order ADD COLUMN second_ms INTEGER NOT NULL DEFAULT 0;

-- remote: held by another service. at_payment: taken when the order is paid instead of being held.
ALTER TABLE t_order_item ADD COLUMN remote INTEGER NOT NULL DEFAULT 0;
ALTER TABLE t_order_item ADD COLUMN at_payment INTEGER NOT NULL DEFAULT 0;

-- note: the reason a person gave. expire_at: the deadline after the transition.
ALTER TABLE t_order_log ADD COLUMN note TEXT NOT NULL DEFAULT '';
ALTER TABLE t_order_log ADD COLUMN expire_at INTEGER NULL;

-- op also: forfeit (given back, but run out: it leaves), restock (sold -> available). Rows of round 0 with the number
-- '~carried' are sums of what was purged. remote: no counter moves; acked_at: its service has acknowledged the release.
ALTER TABLE t_resource_log ADD COLUMN remote INTEGER NOT NULL DEFAULT 0;
ALTER TABLE t_resource_log ADD COLUMN acked_at INTEGER NULL;

ALTER TABLE t_payment ADD COLUMN attempt_no TEXT NOT NULL DEFAULT '';
ALTER TABLE t_payment ADD COLUMN refund_no TEXT NOT NULL DEFAULT '';
CREATE INDEX t_payment_created ON t_payment (created_at);

-- status: open, requested, refunded, consumed.
ALTER TABLE t_late_payment ADD COLUMN round_then INTEGER NOT NULL DEFAULT 0;
ALTER TABLE t_late_payment ADD COLUMN why TEXT NOT NULL DEFAULT '';
ALTER TABLE t_late_payment ADD COLUMN changed_at INTEGER NULL;
ALTER TABLE t_late_payment ADD COLUMN actor TEXT NOT NULL DEFAULT '';
ALTER TABLE t_late_payment ADD COLUMN note TEXT NOT NULL DEFAULT '';
CREATE INDEX t_late_payment_status ON t_late_payment (status, created_at);

-- One row a try to pay. state: open, failed, paid, closed.
CREATE TABLE t_payment_attempt (
  attempt_no TEXT    NOT NULL,
  order_no   TEXT    NOT NULL,
  round      INTEGER NOT NULL,
  channel    TEXT    NOT NULL,
  amount     INTEGER NOT NULL,
  currency   TEXT    NOT NULL,
  state      TEXT    NOT NULL,
  started_at INTEGER NOT NULL,
  deadline   INTEGER NOT NULL,
  ended_at   INTEGER NULL,
  PRIMARY KEY (attempt_no)
) WITHOUT ROWID;
CREATE INDEX t_payment_attempt_order ON t_payment_attempt (order_no);
CREATE INDEX t_payment_attempt_started ON t_payment_attempt (started_at);

-- Settings that hold from their commit on. value is JSON; version counts the changes, each of which is in t_setting_log.
CREATE TABLE t_setting (
  name       TEXT    NOT NULL,
  value      TEXT    NOT NULL,
  version    INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (name)
) WITHOUT ROWID;

CREATE TABLE t_setting_log (
  name    TEXT    NOT NULL,
  version INTEGER NOT NULL,
  value   TEXT    NOT NULL,
  actor   TEXT    NOT NULL,
  note    TEXT    NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (name, version)
) WITHOUT ROWID;

INSERT INTO t_setting (name, value, version, updated_at) VALUES ('brakes', '{"mode":"enforce","percent":100}', 1, CAST(strftime('%s','now') AS INTEGER) * 1000);

-- What would have been closed while closing was in shadow, or for whom it is not rolled out.
CREATE TABLE t_shadow (
  order_no   TEXT    NOT NULL,
  round      INTEGER NOT NULL,
  biz_type   TEXT    NOT NULL,
  expire_at  INTEGER NOT NULL,
  reason     TEXT    NOT NULL,
  decided_at INTEGER NOT NULL,
  PRIMARY KEY (order_no, round)
) WITHOUT ROWID;
CREATE INDEX t_shadow_decided ON t_shadow (decided_at);

-- Things that lapse but are kept elsewhere, each until its owner has closed it. Their time-out rows have their item_no as order_no.
-- t_local_message.state also: 3 a gateway is to be asked about the order, 4 the owner of the item is to be called.
CREATE TABLE t_item (
  item_no    TEXT    NOT NULL,
  kind       TEXT    NOT NULL,
  ref        TEXT    NOT NULL,
  deadline   INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (item_no)
) WITHOUT ROWID;

-- One row a run of the reconciler. position: where it stands, so that another process can go on.
CREATE TABLE t_reconcile_run (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  owner       TEXT    NOT NULL,
  dry_run     INTEGER NOT NULL,
  started_at  INTEGER NOT NULL,
  alive_at    INTEGER NOT NULL,
  finished_at INTEGER NULL,
  position    TEXT    NOT NULL DEFAULT '',
  looked      INTEGER NOT NULL DEFAULT 0,
  found       INTEGER NOT NULL DEFAULT 0,
  mended      INTEGER NOT NULL DEFAULT 0,
  error       TEXT    NOT NULL DEFAULT ''
);

CREATE TABLE t_reconcile_finding (
  run_id  INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  kind    TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  detail  TEXT    NOT NULL,
  action  TEXT    NOT NULL,
  mended  INTEGER NOT NULL,
  PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;

-- Whether a refund's number is taken is asked each time.
CREATE INDEX t_payment_refund ON t_payment (refund_no) WHERE refund_no <> '';

-- Each kind of message is sent and asked for by itself.
DROP INDEX t_local_message_next;
CREATE INDEX t_local_message_next ON t_local_message (state, kind, next_at);

-- What was set aside is looked for by its order.
CREATE INDEX t_quarantine_order ON t_quarantine (order_no);

-- schema_floor: programs that know a lower version of the schema than this cannot work with it.
INSERT INTO t_counter (name, value) VALUES ('schema_floor', 1);

-- reconcile_runs: its row is locked while a run is begun, so that there is one at a time.
INSERT INTO t_counter (name, value) VALUES ('reconcile_runs', 0);

-- The right to look through what the owners of items say is overdue.
INSERT INTO t_lease (shard) VALUES (128);

-- +goose Down
DELETE FROM t_lease WHERE shard = 128;
DELETE FROM t_counter WHERE name IN ('schema_floor', 'reconcile_runs');
DROP INDEX t_quarantine_order;
DROP INDEX t_local_message_next;
CREATE INDEX t_local_message_next ON t_local_message (state, next_at);
DROP TABLE t_reconcile_finding;
DROP TABLE t_reconcile_run;
DROP TABLE t_item;
DROP TABLE t_shadow;
DROP TABLE t_setting_log;
DROP TABLE t_setting;
DROP TABLE t_payment_attempt;
DROP INDEX t_late_payment_status;
DROP INDEX t_payment_created;
ALTER TABLE t_late_payment DROP COLUMN round_then;
ALTER TABLE t_late_payment DROP COLUMN why;
ALTER TABLE t_late_payment DROP COLUMN changed_at;
ALTER TABLE t_late_payment DROP COLUMN actor;
ALTER TABLE t_late_payment DROP COLUMN note;
ALTER TABLE t_payment DROP COLUMN attempt_no;
DROP INDEX t_payment_refund;
ALTER TABLE t_payment DROP COLUMN refund_no;
ALTER TABLE t_resource_log DROP COLUMN remote;
ALTER TABLE t_resource_log DROP COLUMN acked_at;
ALTER TABLE t_order_log DROP COLUMN note;
ALTER TABLE t_order_log DROP COLUMN expire_at;
ALTER TABLE t_order_item DROP COLUMN remote;
ALTER TABLE t_order_item DROP COLUMN at_payment;
ALTER TABLE t_order DROP COLUMN closed_at;
ALTER TABLE t_order DROP COLUMN confirm_until;
ALTER TABLE t_order DROP COLUMN paying_until;
ALTER TABLE t_order DROP COLUMN remind_ms;
ALTER TABLE t_order DROP COLUMN second_ms;
