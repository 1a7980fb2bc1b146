-- A journal of schema 1 with the event that was added for backups: that it was put back from one. It must keep loading, too.
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
INSERT INTO meta VALUES ('cluster_id','0123456789abcdef'),('epoch','1001'),('restored','2000.5');
INSERT INTO events VALUES
(1,1001.0,'MasterStarted','','','{"epoch":1}'),
(2,1002.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"none","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","weight":1.0,"group":"","max_nodes":1,"work_s":null,"time_auto":false,"kind":"shell","idle_limit_s":3600.0},"user":"ann","hold":false,"operation_id":""}'),
(3,2000.5,'JournalRestored','','','{"taken":1500.25,"skipped":1000}');
PRAGMA user_version = 1;
COMMIT;
