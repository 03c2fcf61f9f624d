-- +goose Up

-- Times are UTC, made by the database, cut to milliseconds. Text compares byte by byte (utf8mb4_bin, ascii_bin), as Go does.

-- One row an order. status: 0 pending, 10 paid, 20 cancelled. shard: hash of order_no mod 64, for ever.
CREATE TABLE t_order (
  id            BIGINT           NOT NULL AUTO_INCREMENT,
  order_no      VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  caller        VARCHAR(64)      NOT NULL,
  request_hash  CHAR(32)         CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  user_id       VARCHAR(64)      NOT NULL,
  biz_type      VARCHAR(64)      NOT NULL,
  status        TINYINT UNSIGNED NOT NULL,
  amount        BIGINT           NOT NULL COMMENT 'minor units',
  currency      CHAR(3)          CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_at    DATETIME(3)      NOT NULL,
  expire_at     DATETIME(3)      NOT NULL,
  paid_at       DATETIME(3)      NULL,
  cancelled_at  DATETIME(3)      NULL,
  cancel_reason VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  round         INT              NOT NULL DEFAULT 1,
  version       INT              NOT NULL DEFAULT 1 COMMENT 'number of rows in t_order_log',
  shard         TINYINT UNSIGNED NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY uk_order_no (order_no),
  KEY k_due (shard, status, expire_at),
  KEY k_user (user_id, created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What an order holds.
CREATE TABLE t_order_item (
  order_no VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  kind     VARCHAR(64) NOT NULL,
  ref      VARCHAR(64) NOT NULL,
  quantity BIGINT      NOT NULL,
  PRIMARY KEY (order_no, kind, ref)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One row a transition. event_sent_at: when the broker took the event that tells of it.
CREATE TABLE t_order_log (
  order_no      VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version       INT              NOT NULL,
  round         INT              NOT NULL,
  from_status   TINYINT UNSIGNED NOT NULL,
  to_status     TINYINT UNSIGNED NOT NULL,
  event         VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  reason        VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  actor         VARCHAR(64)      NOT NULL,
  at            DATETIME(3)      NOT NULL,
  event_sent_at DATETIME(3)      NULL,
  PRIMARY KEY (order_no, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Counters of whatever orders hold. Every transaction locks its rows in the order of the primary key.
CREATE TABLE t_resource (
  kind        VARCHAR(64) NOT NULL,
  ref         VARCHAR(64) NOT NULL,
  available   BIGINT      NOT NULL,
  held        BIGINT      NOT NULL,
  sold        BIGINT      NOT NULL,
  owner       VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'the only user who may reserve it; empty for anyone',
  valid_until DATETIME(3) NULL,
  PRIMARY KEY (kind, ref),
  CONSTRAINT c_resource CHECK (available >= 0 AND held >= 0 AND sold >= 0)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The ledger that the counters must equal. op: reserve, sell, release; adjust has round 0 and the adjustment's id as order_no.
CREATE TABLE t_resource_log (
  order_no VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  round    INT         NOT NULL,
  op       VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  kind     VARCHAR(64) NOT NULL,
  ref      VARCHAR(64) NOT NULL,
  quantity BIGINT      NOT NULL,
  at       DATETIME(3) NOT NULL,
  PRIMARY KEY (order_no, round, op, kind, ref)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What was committed and is still to be sent. state: 0 to send, 1 sent, 2 quarantined. next_at: due time and lease in one.
-- Time-out rows exist exactly while their order is pending; event rows are deleted once sent.
CREATE TABLE t_local_message (
  dedup_key         VARCHAR(80)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  kind              VARCHAR(8)       CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  order_no          VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  round             INT              NOT NULL,
  type              VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  hop               INT              NOT NULL,
  due_at            DATETIME(3)      NOT NULL,
  state             TINYINT UNSIGNED NOT NULL DEFAULT 0,
  next_at           DATETIME(3)      NOT NULL,
  failing_since     DATETIME(3)      NULL COMMENT 'first failed attempt to send since it was scheduled',
  attempts          INT              NOT NULL DEFAULT 0 COMMENT 'how often the broker refused this very row',
  payload           MEDIUMBLOB       NOT NULL,
  message_id        VARCHAR(128)     NOT NULL DEFAULT '',
  offset_message_id VARCHAR(128)     NOT NULL DEFAULT '',
  last_error        VARCHAR(500)     NOT NULL DEFAULT '',
  PRIMARY KEY (dedup_key),
  KEY k_next (state, next_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Captured payments. outcome: paid (it paid its order) or late (it has a row in t_late_payment).
CREATE TABLE t_payment (
  payment_no VARCHAR(64) NOT NULL,
  order_no   VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  amount     BIGINT      NOT NULL,
  currency   CHAR(3)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  paid_at    DATETIME(3) NOT NULL COMMENT 'as the channel says',
  outcome    VARCHAR(8)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_at DATETIME(3) NOT NULL,
  PRIMARY KEY (payment_no),
  KEY k_order (order_no)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Payments that came for an order which could not take them.
CREATE TABLE t_late_payment (
  payment_no VARCHAR(64)      NOT NULL,
  order_no   VARCHAR(32)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  state_then TINYINT UNSIGNED NOT NULL COMMENT 'the order''s status when the payment came',
  policy     VARCHAR(16)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  status     VARCHAR(16)      CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_at DATETIME(3)      NOT NULL,
  PRIMARY KEY (payment_no),
  KEY k_order (order_no)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Inputs set aside for a human: the newest 10,000; t_counter counts what was dropped.
CREATE TABLE t_quarantine (
  id       BIGINT       NOT NULL AUTO_INCREMENT,
  source   VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  order_no VARCHAR(128) NOT NULL COMMENT 'as claimed; may be anything',
  reason   VARCHAR(500) NOT NULL,
  body     MEDIUMBLOB   NOT NULL,
  at       DATETIME(3)  NOT NULL,
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE t_counter (
  name  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  value BIGINT      NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO t_counter (name, value) VALUES ('quarantine_dropped', 0);

-- The right to sweep a shard. token grows with every acquisition; passed_at: when the last pass ended.
CREATE TABLE t_lease (
  shard       TINYINT UNSIGNED NOT NULL,
  owner       VARCHAR(128)     NOT NULL DEFAULT '',
  token       BIGINT           NOT NULL DEFAULT 0,
  lease_until DATETIME(3)      NOT NULL DEFAULT '1970-01-02 00:00:00',
  passed_at   DATETIME(3)      NOT NULL DEFAULT '1970-01-02 00:00:00',
  PRIMARY KEY (shard)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO t_lease (shard) VALUES
  (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15),
  (16), (17), (18), (19), (20), (21), (22), (23), (24), (25), (26), (27), (28), (29), (30), (31),
  (32), (33), (34), (35), (36), (37), (38), (39), (40), (41), (42), (43), (44), (45), (46), (47),
  (48), (49), (50), (51), (52), (53), (54), (55), (56), (57), (58), (59), (60), (61), (62), (63);

-- One row a run of the compensator.
CREATE TABLE t_sweep_run (
  id          BIGINT       NOT NULL AUTO_INCREMENT,
  owner       VARCHAR(128) NOT NULL,
  kind        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  started_at  DATETIME(3)  NOT NULL,
  finished_at DATETIME(3)  NULL,
  shards      INT          NOT NULL DEFAULT 0,
  looked      INT          NOT NULL DEFAULT 0,
  closed      INT          NOT NULL DEFAULT 0,
  failed      INT          NOT NULL DEFAULT 0,
  error       VARCHAR(500) NOT NULL DEFAULT '',
  PRIMARY KEY (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- +goose Down
DROP TABLE t_sweep_run, t_lease, t_counter, t_quarantine, t_late_payment, t_payment, t_local_message, t_resource_log, t_resource,
  t_order_log, t_order_item, t_order;
