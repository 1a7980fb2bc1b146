-- A journal of schema 1 with the events of jobs that are swapped to host memory. It must keep loading, too.
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
(1,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[]}'),
(2,1002.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":2.0,"mem_bytes":8589934592,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"swap","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","weight":1.0,"group":"","max_nodes":1,"work_s":null,"time_auto":false},"user":"ann","hold":false,"operation_id":""}'),
(3,1002.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":2.0,"mem_bytes":8589934592}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(4,1003.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0}'),
(5,1004.0,'JobSubmitted','2','','{"job":"2","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"te","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","weight":1.0,"group":"","max_nodes":1,"work_s":null,"time_auto":false},"user":"ann","hold":false,"operation_id":""}'),
(6,1004.0,'StopRequested','1','','{"job":"1","attempt":1,"cause":"preempted","grace_s":180.0,"reason":"preempted by job 2","for_job":"2"}'),
(7,1004.0,'RoomClaimed','2','','{"job":"2","allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"waiting for 1 GPU that job 1 is asked to free"}'),
(8,1005.0,'AttemptSwapped','1','','{"job":"1","attempt":1,"swaps":1,"mem_bytes":32212254720,"seconds":10.0,"note":""}'),
(9,1005.0,'AttemptPlaced','2','','{"job":"2","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(10,1006.0,'AttemptStarted','2','','{"job":"2","attempt":1,"pid":1001,"resumed_step":null,"swaps":0}'),
(11,1007.0,'AttemptExited','2','','{"job":"2","attempt":1,"exit":{"exit_code":0,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":""},"progress":null,"freed":false}'),
(12,1008.0,'AttemptFreed','2','','{"job":"2","attempt":1,"dirty_gpus":[]}'),
(13,1008.0,'ReturnRequested','1','','{"job":"1","attempt":1,"reason":"coming back to 1 GPU of node a","sticky":false,"reserved_s":null}'),
(14,1009.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":1}'),
(15,1010.0,'SuspendRequested','1','','{"job":"1"}'),
(16,1010.0,'StopRequested','1','','{"job":"1","attempt":1,"cause":"suspended","grace_s":180.0,"reason":"suspended by user","for_job":null}'),
(17,1011.0,'AttemptSwapped','1','','{"job":"1","attempt":1,"swaps":2,"mem_bytes":32212254720,"seconds":10.0,"note":""}');
PRAGMA user_version = 1;
COMMIT;
