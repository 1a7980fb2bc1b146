-- A journal of schema 1 with the event that was added for sessions: that nobody uses one. It must keep loading, too.
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
(2,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[]}'),
(3,1002.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"none","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","weight":1.0,"group":"","max_nodes":1,"work_s":null,"time_auto":false,"kind":"shell","idle_limit_s":3600.0},"user":"ann","hold":false,"operation_id":""}'),
(4,1002.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(5,1003.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null}'),
(6,4003.0,'SessionUnused','1','','{"job":"1","attempt":1,"since":1003.0,"left_s":600.0}');
PRAGMA user_version = 1;
COMMIT;
