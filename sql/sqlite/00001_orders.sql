-- +goose Up

-- Times are unix milliseconds. Text compares byte by byte, as Go does. Same tables and columns as in ../mysql.

-- One row an order. status: 0 pending, 10 paid, 20 cancelled. shard: hash of order_no mod 64, for ever.
CREATE TABLE t_order (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  order_no      TEXT    NOT NULL,
  caller        TEXT    NOT NULL,
  request_hash  TEXT    NOT NULL,
  user_id       TEXT    NOT NULL,
  biz_type      TEXT    NOT NULL,
  status        INTEGER NOT NULL,
  amount        INTEGER NOT NULL,
  currency      TEXT    NOT NULL,
  created_at    INTEGER NOT NULL,
  expire_at     INTEGER NOT NULL,
  paid_at       INTEGER NULL,
  cancelled_at  INTEGER NULL,
  cancel_reason TEXT    NOT NULL DEFAULT '',
  round         INTEGER NOT NULL DEFAULT 1,
  version       INTEGER NOT NULL DEFAULT 1,
  shard         INTEGER NOT NULL,
  UNIQUE (order_no)
);
CREATE INDEX t_order_due ON t_order (shard, status, expire_at);
CREATE INDEX t_order_user ON t_order (user_id, created_at);

-- What an order holds.
CREATE TABLE t_order_item (
  order_no TEXT    NOT NULL,
  kind     TEXT    NOT NULL,
  ref      TEXT    NOT NULL,
  quantity INTEGER NOT NULL,
  PRIMARY KEY (order_no, kind, ref)
) WITHOUT ROWID;

-- One row a transition. event_sent_at: when the broker took the event that tells of it.
CREATE TABLE t_order_log (
  order_no      TEXT    NOT NULL,
  version       INTEGER NOT NULL,
  round         INTEGER NOT NULL,
  from_status   INTEGER NOT NULL,
  to_status     INTEGER NOT NULL,
  event         TEXT    NOT NULL,
  reason        TEXT    NOT NULL,
  actor         TEXT    NOT NULL,
  at            INTEGER NOT NULL,
  event_sent_at INTEGER NULL,
  PRIMARY KEY (order_no, version)
) WITHOUT ROWID;

-- Counters of whatever orders hold. Every transaction locks its rows in the order of the primary key.
CREATE TABLE t_resource (
  kind        TEXT    NOT NULL,
  ref         TEXT    NOT NULL,
  available   INTEGER NOT NULL,
  held        INTEGER NOT NULL,
  sold        INTEGER NOT NULL,
  owner       TEXT    NOT NULL DEFAULT '',
  valid_until INTEGER NULL,
  PRIMARY KEY (kind, ref),
  CONSTRAINT c_resource CHECK (available >= 0 AND held >= 0 AND sold >= 0)
) WITHOUT ROWID;

-- The ledger that the counters must equal. op: reserve, sell, release; adjust has round 0 and the adjustment's id as order_no.
CREATE TABLE t_resource_log (
  order_no TEXT    NOT NULL,
  round    INTEGER NOT NULL,
  op       TEXT    NOT NULL,
  kind     TEXT    NOT NULL,
  ref      TEXT    NOT NULL,
  quantity INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  PRIMARY KEY (order_no, round, op, kind, ref)
) WITHOUT ROWID;

-- What was committed and is still to be sent. state: 0 to send, 1 sent, 2 quarantined. next_at: due time and lease in one.
-- Time-out rows exist exactly while their order is pending; event rows are deleted once sent.
CREATE TABLE t_local_message (
  dedup_key         TEXT    NOT NULL,
  kind              TEXT    NOT NULL,
  order_no          TEXT    NOT NULL,
  round             INTEGER NOT NULL,
  type              TEXT    NOT NULL,
  hop               INTEGER NOT NULL,
  due_at            INTEGER NOT NULL,
  state             INTEGER NOT NULL DEFAULT 0,
  next_at           INTEGER NOT NULL,
  failing_since     INTEGER NULL,
  attempts          INTEGER NOT NULL DEFAULT 0,
  payload           BLOB    NOT NULL,
  message_id        TEXT    NOT NULL DEFAULT '',
  offset_message_id TEXT    NOT NULL DEFAULT '',
  last_error        TEXT    NOT NULL DEFAULT '',
  PRIMARY KEY (dedup_key)
) WITHOUT ROWID;
CREATE INDEX t_local_message_next ON t_local_message (state, next_at);

-- Captured payments. outcome: paid (it paid its order) or late (it has a row in t_late_payment).
CREATE TABLE t_payment (
  payment_no TEXT    NOT NULL,
  order_no   TEXT    NOT NULL,
  amount     INTEGER NOT NULL,
  currency   TEXT    NOT NULL,
  paid_at    INTEGER NOT NULL,
  outcome    TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (payment_no)
) WITHOUT ROWID;
CREATE INDEX t_payment_order ON t_payment (order_no);

-- Payments that came for an order which could not take them.
CREATE TABLE t_late_payment (
  payment_no TEXT    NOT NULL,
  order_no   TEXT    NOT NULL,
  state_then INTEGER NOT NULL,
  policy     TEXT    NOT NULL,
  status     TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (payment_no)
) WITHOUT ROWID;
CREATE INDEX t_late_payment_order ON t_late_payment (order_no);

-- Inputs set aside for a human: the newest 10,000; t_counter counts what was dropped.
CREATE TABLE t_quarantine (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  source   TEXT    NOT NULL,
  order_no TEXT    NOT NULL,
  reason   TEXT    NOT NULL,
  body     BLOB    NOT NULL,
  at       INTEGER NOT NULL
);

CREATE TABLE t_counter (
  name  TEXT    NOT NULL,
  value INTEGER NOT NULL,
  PRIMARY KEY (name)
) WITHOUT ROWID;

INSERT INTO t_counter (name, value) VALUES ('quarantine_dropped', 0);

-- The right to sweep a shard. token grows with every acquisition; passed_at: when the last pass ended.
CREATE TABLE t_lease (
  shard       INTEGER NOT NULL,
  owner       TEXT    NOT NULL DEFAULT '',
  token       INTEGER NOT NULL DEFAULT 0,
  lease_until INTEGER NOT NULL DEFAULT 0,
  passed_at   INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (shard)
) WITHOUT ROWID;

INSERT INTO t_lease (shard) VALUES
  (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15),
  (16), (17), (18), (19), (20), (21), (22), (23), (24), (25), (26), (27), (28), (29), (30), (31),
  (32), (33), (34), (35), (36), (37), (38), (39), (40), (41), (42), (43), (44), (45), (46), (47),
  (48), (49), (50), (51), (52), (53), (54), (55), (56), (57), (58), (59), (60), (61), (62), (63);

-- One row a run of the compensator.
CREATE TABLE t_sweep_run (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,
  owner       TEXT    NOT NULL,
  kind        TEXT    NOT NULL,
  started_at  INTEGER NOT NULL,
  finished_at INTEGER NULL,
  shards      INTEGER NOT NULL DEFAULT 0,
  looked      INTEGER NOT NULL DEFAULT 0,
  closed      INTEGER NOT NULL DEFAULT 0,
  failed      INTEGER NOT NULL DEFAULT 0,
  error       TEXT    NOT NULL DEFAULT ''
);

-- +goose Down
DROP TABLE t_sweep_run;
DROP TABLE t_lease;
DROP TABLE t_counter;
DROP TABLE t_quarantine;
DROP TABLE t_late_payment;
DROP TABLE t_payment;
DROP TABLE t_local_message;
DROP TABLE t_resource_log;
DROP TABLE t_resource;
DROP TABLE t_order_log;
DROP TABLE t_order_item;
DROP TABLE t_order;
