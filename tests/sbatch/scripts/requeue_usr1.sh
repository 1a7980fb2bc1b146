#!/bin/bash
#SBATCH --job-name=long
#SBATCH --gres=gpu:a100:1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

requeue() {
    echo "asked to leave, run ${SLURM_RESTART_COUNT:-0}"
    kill -TERM "$child"
    wait "$child"
    scontrol requeue "$SLURM_JOB_ID"
}
trap requeue USR1
sleep 3600 &
child=$!
echo "run ${SLURM_RESTART_COUNT:-0}"
wait "$child"
