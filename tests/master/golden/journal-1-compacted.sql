-- A journal of schema 1 with the events that a compacted one has. It must keep loading, too.
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    job TEXT NOT NULL,
    node TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job, sequence) WHERE job <> '';
INSERT INTO meta VALUES ('cluster_id','0123456789abcdef'),('epoch','1');
INSERT INTO events VALUES
(1,1001.0,'MasterStarted','','','{"epoch":1}'),
(2,1002.0,'JobsForgotten','','','{"count":3}'),
(7,1003.0,'RateForgotten','','','{"was":"1","user":"ann","script":"train","share":720720,"nodes":1,"alone":true,"steps_per_s":2.5,"samples":3,"model":"A100"}'),
(9,1012.0,'RunForgotten','','','{"user":"ann","script":"train","work_s":20.0,"ran_s":10.0,"peak_bytes":1073741824,"tells":true}'),
(12,9000.0,'JournalCompacted','','','{"before":5000.0,"count":3}');
PRAGMA user_version = 1;
COMMIT;
