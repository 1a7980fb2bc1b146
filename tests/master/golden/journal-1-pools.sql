-- A journal of schema 1 with the event that was added since journal-1-rates.sql was written: jobs that are moved to
-- another pool. It must keep loading, too.
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
(2,1002.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default"}'),
(3,1003.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"big"}'),
(4,1004.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"pool":""},"user":"ann","hold":false,"operation_id":""}'),
(5,1004.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(6,1005.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(7,1006.0,'JobSubmitted','2','','{"job":"2","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"pool":""},"user":"ann","hold":true,"operation_id":""}'),
(8,1007.0,'JobSubmitted','3','','{"job":"3","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"pool":""},"user":"ann","hold":false,"operation_id":""}'),
(9,1008.0,'JobMoved','2','','{"job":"2","pool":"big","old_pool":"default","user":"ann"}'),
(10,1009.0,'JobMoved','1','','{"job":"1","pool":"big","old_pool":"default","user":"ann"}'),
(11,1009.0,'StopRequested','1','','{"job":"1","attempt":1,"cause":"moved to another pool","grace_s":180.0,"reason":"stepping aside to go on in pool big","for_job":null}'),
(12,1010.0,'AttemptExited','1','','{"job":"1","attempt":1,"exit":{"exit_code":85,"signal":0,"lost":false,"stop_requested":true,"delivered":true,"caught":true,"acknowledged":true,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","mps_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false,"lost_gpu":""},"progress":null,"freed":false,"node":""}'),
(13,1011.0,'AttemptFreed','1','','{"job":"1","attempt":1,"dirty_gpus":[],"node":"","dirty_reasons":[]}'),
(14,1011.0,'AttemptPlaced','3','','{"job":"3","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(15,1011.0,'AttemptPlaced','1','','{"job":"1","attempt":2,"allocation":{"nodes":[{"node":"b","gpus":[{"gpu":"b0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node b","sticky":false,"reserved_s":null}'),
(16,1012.0,'AttemptStarted','1','','{"job":"1","attempt":2,"pid":1002,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(17,1013.0,'AttemptStarted','3','','{"job":"3","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null}'),
(18,1014.0,'JobMoved','3','','{"job":"3","pool":"big","old_pool":"default","user":"ann"}'),
(19,1014.0,'StopRequested','3','','{"job":"3","attempt":1,"cause":"moved to another pool","grace_s":180.0,"reason":"stepping aside to go on in pool big","for_job":null}');
PRAGMA user_version = 1;
COMMIT;
