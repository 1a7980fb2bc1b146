-- A journal of schema 1 with the events that were added since journal-1.sql was written: reservations of GPUs, and
-- jobs that do not use theirs. It must keep loading, too.
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
(1,100.0,'MasterStarted','','','{"epoch":1}'),
(2,101.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false},{"gpu":"a1","index":1,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false},{"gpu":"a2","index":2,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false},{"gpu":"a3","index":3,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false}'),
(3,110.0,'BookingMade','','','{"booking":"1","user":"anna","since":500.0,"until":9000.0,"gpus":[{"node":"a","gpu":"a0"},{"node":"a","gpu":"a1"}],"window":"09:00 to 13:00","by":"bob","note":"demo","on_node":"a","gpu_type":"a100"}'),
(4,111.0,'BookingMade','','','{"booking":"2","user":"eve","since":600.0,"until":700.0,"gpus":[{"node":"a","gpu":"a2"}],"window":"09:02 to 09:04","by":"","note":"","on_node":"","gpu_type":""}'),
(5,112.0,'BookingCancelled','','','{"booking":"2","by":"eve"}'),
(6,120.0,'GpuHealthChanged','','a','{"node":"a","gpu":"a1","healthy":false,"reason":"Xid 79","gone":false}'),
(7,120.0,'BookingMoved','','','{"booking":"1","gpus":[{"node":"a","gpu":"a0"},{"node":"a","gpu":"a3"}],"reason":"GPU a1 of node a is lost"}'),
(8,130.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["train"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"idle_ok":false},"user":"ann","hold":false,"operation_id":""}'),
(9,131.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a2","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(10,132.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":100,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(11,2000.0,'JobIdle','1','','{"job":"1","attempt":1,"since":140.0,"suspend_at":2600.0}'),
(12,2010.0,'JobBusy','1','','{"job":"1","attempt":1}'),
(13,4000.0,'JobIdle','1','','{"job":"1","attempt":1,"since":2010.0,"suspend_at":null}');
PRAGMA user_version = 1;
COMMIT;
