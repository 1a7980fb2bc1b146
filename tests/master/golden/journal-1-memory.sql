-- A journal of schema 1 with the events of jobs that needed more GPU memory than they had. It must keep loading, too.
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
(1,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":""},{"gpu":"a1","index":1,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[]}'),
(2,1002.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":180180,"gpus_max":180180,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false},"user":"ann","hold":false,"operation_id":""}'),
(3,1002.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":180180,"mem_bytes":10737418240}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1/4 GPU of node a","sticky":false,"reserved_s":null}'),
(4,1003.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0}'),
(5,1065.0,'AttemptExited','1','','{"job":"1","attempt":1,"exit":{"exit_code":0,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","gpu_mem_peak_bytes":4294967296,"out_of_memory":false},"progress":null,"freed":false,"node":""}'),
(6,1066.0,'AttemptFreed','1','','{"job":"1","attempt":1,"dirty_gpus":[],"node":""}'),
(7,1067.0,'JobSubmitted','2','','{"job":"2","spec":{"command":["x"],"workdir":"/","name":"","env":{},"gpus_min":180180,"gpus_max":180180,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false},"user":"ann","hold":true,"operation_id":""}'),
(8,1068.0,'GpuMemoryChanged','2','','{"job":"2","mem_bytes":4831838208,"gpus_min":180180,"gpus_max":180180,"reason":"from its last run"}'),
(9,1069.0,'ReleaseRequested','2','','{"job":"2"}'),
(10,1069.0,'AttemptPlaced','2','','{"job":"2","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":180180,"mem_bytes":4831838208}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1/4 GPU of node a","sticky":false,"reserved_s":null}'),
(11,1070.0,'AttemptStarted','2','','{"job":"2","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0}'),
(12,1071.0,'MemoryOverran','2','','{"job":"2","attempt":1,"gpu":"a0","used_bytes":6979321856,"allowed_bytes":4831838208}'),
(13,1071.0,'GpuMemoryChanged','2','','{"job":"2","mem_bytes":7784628224,"gpus_min":180180,"gpus_max":180180,"reason":"it used 6.5 GiB in attempt 1"}'),
(14,1071.0,'StopRequested','2','','{"job":"2","attempt":1,"cause":"overran its GPU memory","grace_s":180.0,"reason":"uses 6.5 GiB of GPU memory, 4.5 GiB were given to it; it goes on with 7.2 GiB","for_job":null}'),
(15,1072.0,'AttemptExited','2','','{"job":"2","attempt":1,"exit":{"exit_code":85,"signal":0,"lost":false,"stop_requested":true,"delivered":true,"caught":true,"acknowledged":true,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","gpu_mem_peak_bytes":null,"out_of_memory":false},"progress":null,"freed":false,"node":""}'),
(16,1073.0,'AttemptFreed','2','','{"job":"2","attempt":1,"dirty_gpus":[],"node":""}'),
(17,1073.0,'AttemptPlaced','2','','{"job":"2","attempt":2,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":180180,"mem_bytes":7784628224}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1/4 GPU of node a","sticky":false,"reserved_s":null}'),
(18,1074.0,'AttemptStarted','2','','{"job":"2","attempt":2,"pid":1002,"resumed_step":null,"swaps":0,"node":"","port":0}'),
(19,1075.0,'AttemptExited','2','','{"job":"2","attempt":2,"exit":{"exit_code":1,"signal":0,"lost":false,"stop_requested":false,"delivered":false,"caught":false,"acknowledged":false,"asked":false,"killed":false,"checkpointed":"unknown","checkpoint_s":0.0,"ended_at":0.0,"swap_failure":"","gpu_mem_peak_bytes":7516192768,"out_of_memory":true},"progress":null,"freed":false,"node":""}'),
(20,1075.0,'GpuMemoryChanged','2','','{"job":"2","mem_bytes":8589934592,"gpus_min":720720,"gpus_max":720720,"reason":"it ran out of 7.2 GiB in attempt 2"}'),
(21,1076.0,'AttemptFreed','2','','{"job":"2","attempt":2,"dirty_gpus":[],"node":""}'),
(22,1076.0,'AttemptPlaced','2','','{"job":"2","attempt":3,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(23,1077.0,'AttemptStarted','2','','{"job":"2","attempt":3,"pid":1003,"resumed_step":null,"swaps":0,"node":"","port":0}');
PRAGMA user_version = 1;
COMMIT;
