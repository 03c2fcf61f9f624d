-- +goose Up

-- Only adds: programs of the version before go on working, and may be started again (see t_counter 'schema_floor').

-- status: 0 pending, 5 confirming, 10 paid, 20 cancelled, 30 closed.
ALTER TABLE t_order
  ADD COLUMN closed_at       DATETIME(3) NULL,
  ADD COLUMN confirm_until   DATETIME(3) NULL COMMENT 'only of confirming orders',
  ADD COLUMN paying_until    DATETIME(3) NULL COMMENT 'last deadline of its open payment attempts',
  ADD COLUMN remind_ms       BIGINT      NOT NULL DEFAULT 0 COMMENT 'so long before expire_at it is reminded; 0: not, or done',
  ADD COLUMN second_ms       BIGINT      NOT NULL DEFAULT 0 COMMENT 'at expire_at it is reminded and has so long again; 0: closed, -1: for ever';

-- remote: held by another service. at_payment: taken when the order is paid instead of being held.
ALTER TABLE t_order_item
  ADD COLUMN remote     BOOLEAN NOT NULL DEFAULT FALSE,
  ADD COLUMN at_payment BOOLEAN NOT NULL DEFAULT FALSE;

-- note: the reason a person gave. expire_at: the deadline after the transition.
ALTER TABLE t_order_log
  ADD COLUMN note      VARCHAR(255) NOT NULL DEFAULT '',
  ADD COLUMN expire_at DATETIME(3)  NULL;

-- op also: forfeit (given back, but run out: it leaves), restock (sold -> available). Rows of round 0 with the number
-- '~carried' are sums of what was purged. remote: no counter moves; acked_at: its service has acknowledged the release.
ALTER TABLE t_resource_log
  ADD COLUMN remote   BOOLEAN     NOT NULL DEFAULT FALSE,
  ADD COLUMN acked_at DATETIME(3) NULL;

ALTER TABLE t_payment
  ADD COLUMN attempt_no VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  ADD COLUMN refund_no  VARCHAR(64) NOT NULL DEFAULT '',
  ADD KEY k_created (created_at);

-- status: open, requested, refunded, consumed.
ALTER TABLE t_late_payment
  ADD COLUMN round_then INT          NOT NULL DEFAULT 0,
  ADD COLUMN why        VARCHAR(255) NOT NULL DEFAULT '',
  ADD COLUMN changed_at DATETIME(3)  NULL,
  ADD COLUMN actor      VARCHAR(64)  NOT NULL DEFAULT '',
  ADD COLUMN note       VARCHAR(255) NOT NULL DEFAULT '',
  ADD KEY k_status (status, created_at);

-- One row a try to pay. state: open, failed, paid, closed.
CREATE TABLE t_payment_attempt (
  attempt_no VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  order_no   VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  round      INT         NOT NULL,
  channel    VARCHAR(64) NOT NULL,
  amount     BIGINT      NOT NULL,
  currency   CHAR(3)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state      VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  started_at DATETIME(3) NOT NULL,
  deadline   DATETIME(3) NOT NULL,
  ended_at   DATETIME(3) NULL,
  PRIMARY KEY (attempt_no),
  KEY k_order (order_no),
  KEY k_started (started_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Settings that hold from their commit on. value is JSON; version counts the changes, each of which is in t_setting_log.
CREATE TABLE t_setting (
  name       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  value      TEXT        NOT NULL,
  version    INT         NOT NULL,
  updated_at DATETIME(3) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE t_setting_log (
  name    VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version INT          NOT NULL,
  value   TEXT         NOT NULL,
  actor   VARCHAR(64)  NOT NULL,
  note    VARCHAR(255) NOT NULL,
  at      DATETIME(3)  NOT NULL,
  PRIMARY KEY (name, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO t_setting (name, value, version, updated_at) VALUES ('brakes', '{"mode":"enforce","percent":100}', 1, UTC_TIMESTAMP(3));

-- What would have been closed while closing was in shadow, or for whom it is not rolled out.
CREATE TABLE t_shadow (
  order_no   VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  round      INT         NOT NULL,
  biz_type   VARCHAR(64) NOT NULL,
  expire_at  DATETIME(3) NOT NULL,
  reason     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  decided_at DATETIME(3) NOT NULL,
  PRIMARY KEY (order_no, round),
  KEY k_decided (decided_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Things that lapse but are kept elsewhere, each until its owner has closed it. Their time-out rows have their item_no as order_no.
-- t_local_message.state also: 3 a gateway is to be asked about the order, 4 the owner of the item is to be called.
CREATE TABLE t_item (
  item_no    VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'derived from kind and ref',
  kind       VARCHAR(64) NOT NULL,
  ref        VARCHAR(64) NOT NULL,
  deadline   DATETIME(3) NOT NULL,
  created_at DATETIME(3) NOT NULL,
  PRIMARY KEY (item_no)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One row a run of the reconciler. position: where it stands, so that another process can go on.
CREATE TABLE t_reconcile_run (
  id          BIGINT       NOT NULL AUTO_INCREMENT,
  owner       VARCHAR(128) NOT NULL,
  dry_run     BOOLEAN      NOT NULL,
  started_at  DATETIME(3)  NOT NULL,
  alive_at    DATETIME(3)  NOT NULL COMMENT 'last sign of life; another process may go on with a run that has had none for long',
  finished_at DATETIME(3)  NULL,
  position    VARCHAR(255) NOT NULL DEFAULT '',
  looked      BIGINT       NOT NULL DEFAULT 0,
  found       INT          NOT NULL DEFAULT 0,
  mended      INT          NOT NULL DEFAULT 0,
  error       VARCHAR(500) NOT NULL DEFAULT '',
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE t_reconcile_finding (
  run_id  BIGINT       NOT NULL,
  seq     INT          NOT NULL,
  kind    VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  subject VARCHAR(160) NOT NULL COMMENT 'order number, resource or message key',
  detail  VARCHAR(500) NOT NULL,
  action  VARCHAR(500) NOT NULL COMMENT 'what was done, or would be',
  mended  BOOLEAN      NOT NULL,
  PRIMARY KEY (run_id, seq)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Whether a refund's number is taken is asked each time.
ALTER TABLE t_payment ADD KEY k_refund (refund_no);

-- Each kind of message is sent and asked for by itself.
ALTER TABLE t_local_message DROP KEY k_next, ADD KEY k_next (state, kind, next_at);

-- What was set aside is looked for by its order.
ALTER TABLE t_quarantine ADD KEY k_order (order_no);

-- schema_floor: programs that know a lower version of the schema than this cannot work with it.
INSERT INTO t_counter (name, value) VALUES ('schema_floor', 1);

-- reconcile_runs: its row is locked while a run is begun, so that there is one at a time.
INSERT INTO t_counter (name, value) VALUES ('reconcile_runs', 0);

-- The right to look through what the owners of items say is overdue.
INSERT INTO t_lease (shard) VALUES (128);

-- +goose Down
DELETE FROM t_lease WHERE shard = 128;
DELETE FROM t_counter WHERE name IN ('schema_floor', 'reconcile_runs');
ALTER TABLE t_quarantine DROP KEY k_order;
ALTER TABLE t_local_message DROP KEY k_next, ADD KEY k_next (state, next_at);
DROP TABLE t_reconcile_finding, t_reconcile_run, t_item, t_shadow, t_setting_log, t_setting, t_payment_attempt;
ALTER TABLE t_late_payment DROP KEY k_status, DROP COLUMN round_then, DROP COLUMN why, DROP COLUMN changed_at, DROP COLUMN actor, DROP COLUMN note;
ALTER TABLE t_payment DROP KEY k_created, DROP KEY k_refund, DROP COLUMN attempt_no, DROP COLUMN refund_no;
ALTER TABLE t_resource_log DROP COLUMN remote, DROP COLUMN acked_at;
ALTER TABLE t_order_log DROP COLUMN note, DROP COLUMN expire_at;
ALTER TABLE t_order_item DROP COLUMN remote, DROP COLUMN at_payment;
ALTER TABLE t_order DROP COLUMN closed_at, DROP COLUMN confirm_until, DROP COLUMN paying_until, DROP COLUMN remind_ms, DROP COLUMN second_ms;
